-- drop_checkpoint: forget a checkpoint, and give what it alone referred to back to the collector.
--
-- Why atomic: a slot's copy goes in the step that names its payload, so nothing is forgotten. What is pinned
-- is not live, and whether another checkpoint needs it `condemn` looks again. Up to `limit` slots a call.
-- May be repeated until nothing remains.
-- Keys: meta dead pinned checkpoints
-- Args: name limit saved_ids
-- Returns: entries given back, whether more remain
-- Refusals: none
-- include: checkpoint
-- include: record
local refusal = control.open()
if refusal then return refusal end
local id, copies = args.saved_ids[1], saved[1]
local dropping = '~' .. id
local found = checkpoint.read(args.name)
local listed = redis.call('HRANDFIELD', copies.slots, text.whole(args.limit), 'WITHVALUES') or {}
if found and found.id ~= id then found = nil end
if not found and not checkpoint.read(dropping) then return control.head('OK', '0', '0') end
local forgotten, dead, unpinned = {}, {}, {}
for at = 1, #listed, 2 do
  local kept = record.parse(listed[at], listed[at + 1])
  local entry = kept.payload_fence and text.whole(kept.payload_fence) .. ':' .. kept.id
  forgotten[#forgotten + 1] = listed[at]
  if entry and redis.call('ZSCORE', keys.pinned, entry) then
    unpinned[#unpinned + 1] = entry
    dead[#dead + 1], dead[#dead + 2] = control.seq, entry
  end
end

-- A full server refuses a script whose first write may need memory, so what frees some comes first.
if #forgotten > 0 then redis.call('HDEL', copies.slots, unpack(forgotten)) end
if found then
  redis.call('HDEL', keys.checkpoints, args.name)
  checkpoint.write(dropping, found)
end
if #unpinned > 0 then redis.call('ZREM', keys.pinned, unpack(unpinned)) end
if #dead > 0 then redis.call('ZADD', keys.dead, unpack(dead)) end
local more = redis.call('EXISTS', copies.slots) == 1
if not more then
  redis.call('UNLINK', copies.meta, copies.prompts, copies.admissions, copies.steps, copies.tally, copies.counters,
    copies.ends)
  redis.call('HDEL', keys.checkpoints, dropping)
end
return control.head('OK', text.whole(#dead / 2), more and '1' or '0')
