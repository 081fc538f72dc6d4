-- condemn: decide which dead entries may be freed; what a checkpoint refers to is set aside instead.
--
-- Why atomic: no checkpoint is restored between the look at its slots and the decision. A condemned entry is
-- in no checkpoint and never lives again, so its payload may be freed at leisure, by the one who was answered it.
-- May be repeated: entries that are not dead any more are left alone. Without entries it takes the first 64.
-- Keys: meta groups dead pinned condemned checkpoints
-- Args: entries saved_ids
-- Returns: how many entries are dead still, then those that are condemned
-- Refusals: CHECKPOINTS_MOVED
-- include: known
-- include: record
local refusal = control.open()
if refusal then return refusal end
refusal = known.moved()
if refusal then return refusal end
local entries, pinned, condemned = args.entries, {}, {}
if #entries == 0 then entries = redis.call('ZRANGE', keys.dead, 0, 63) end
for _, entry in ipairs(entries) do
  local score = redis.call('ZSCORE', keys.dead, entry)
  local fence, id = string.match(entry, '^(%d+):(.*)$')
  local keeps = false
  for at = 1, score and fence and #saved or 0 do
    local kept = redis.call('HGET', saved[at].slots, id)
    keeps = keeps or kept and record.parse(id, kept).payload_fence == tonumber(fence)
  end
  local list = keeps and pinned or condemned
  if score then list[#list + 1], list[#list + 2] = score, entry end
end

-- A full server refuses a script whose first write may need memory, so what frees some comes first.
if #entries > 0 then redis.call('ZREM', keys.dead, unpack(entries)) end
local answer = {}
for at = 2, #condemned, 2 do
  answer[at / 2] = condemned[at]
end
if #pinned > 0 then redis.call('ZADD', keys.pinned, unpack(pinned)) end
if #answer > 0 then
  redis.call('HDEL', keys.groups, unpack(answer))
  redis.call('ZADD', keys.condemned, unpack(condemned))
end
return control.head('OK', text.whole(redis.call('ZCARD', keys.dead)), unpack(answer))
