-- acknowledge: record that one rank has finished with a claimed batch.
--
-- Why atomic: the batch and its owner's epoch are compared in the step that records.
-- May be repeated: a rank counts once.
-- Keys: meta owners batches acks events
-- Args: owner epoch batch rank
-- Returns: nothing
-- Refusals: FENCED BATCH
-- include: owner
local refusal = control.open()
if refusal then return refusal end
refusal = owner.fenced()
if refusal then return refusal end
local number, rank = text.whole(args.batch), text.whole(args.rank)
local kept = redis.call('HGET', keys.batches, number)
if not kept or text.unpack(kept)[1] ~= text.whole(args.epoch) then return control.head('BATCH', number) end
local acks = redis.call('HGET', keys.acks, number) or ' '
if not string.find(acks, ' ' .. rank .. ' ', 1, true) then
  redis.call('HSET', keys.acks, number, acks .. rank .. ' ')
  control.close('acknowledge', {}, args.owner)
end
return control.head('OK')
