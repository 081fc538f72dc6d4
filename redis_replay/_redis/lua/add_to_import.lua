-- add_to_import: write a slice of an imported checkpoint's copies, and the records of groups among them.
--
-- Why atomic: a record is entered together with the slot that refers to it and as pinned, so dropping the
-- checkpoint finds it and nothing else frees it; and nothing is written once the checkpoint was dropped.
-- Payload is written afterwards, under keys that the record has made known. May be repeated.
-- Keys: meta groups pinned checkpoints
-- Args: name noun items records saved_ids
-- Returns: nothing
-- Refusals: NO_CHECKPOINT
-- include: checkpoint
local refusal = control.open()
if refusal then return refusal end
local found = checkpoint.read(args.name)
if not found or found.id ~= args.saved_ids[1] or found.state ~= 'building' then
  return control.head('NO_CHECKPOINT', args.name)
end
local pins = {}
for at = 1, #args.records, 2 do
  pins[at], pins[at + 1] = control.seq, args.records[at]
end

if #pins > 0 then
  redis.call('HSET', keys.groups, unpack(args.records))
  redis.call('ZADD', keys.pinned, unpack(pins))
end
redis.call('HSET', saved[1][args.noun], unpack(args.items))
return control.head('OK')
