-- claim_exact: pass named ready groups into training ownership, all or none.
--
-- Why atomic: a custom sampler has chosen from what it saw; if one of its groups is no longer ready,
-- none is taken.
-- Keys: meta slots ready claimed ready_by_step claimed_by_step ready_by_order claimed_by_owner
--   batches groups counters sessions owners events
-- Args: group_ids
-- States: ready -> claimed
-- Returns: as `claim`, in the order given
-- Refusals: UNKNOWN STATE TOO_MANY
-- include: session
-- include: owner
-- include: batch
local refusal = session.open()
if refusal then return refusal end
refusal = batch.check_room(args.epoch, #args.group_ids)
if refusal then return refusal end
local slots, unready = slot.load(args.group_ids, 'ready')
if not slots then return unready end
local number, items = batch.give(slots, owner.read(args.owner), control.version)
redis.call('HINCRBY', keys.counters, 'claimed_total', #slots)
local answer = session.close('claim', args.group_ids, text.whole(number), text.whole(#slots), unpack(items))
return batch.describe(answer, slots)
