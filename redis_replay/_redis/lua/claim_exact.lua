-- claim_exact: pass named ready groups into training ownership, all or none.
--
-- Why atomic: a custom sampler has chosen from what it saw; if one of its groups is no longer ready,
-- none is taken.
-- Keys: meta slots ready claimed ready_by_step claimed_by_step ready_by_order claimed_by_owner
--   batches groups counters sessions owners events
-- Args: policy group_ids
-- States: ready -> claimed
-- Returns: as `claim`, in the order given
-- Refusals: POLICY UNKNOWN STATE TOO_MANY CORRUPT
-- include: session
-- include: policy
-- include: owner
-- include: batch
-- include: taking
local refusal = session.open()
if refusal then return refusal end
refusal = policy.check()
if refusal then return refusal end
refusal = batch.check_room(args.epoch, #args.group_ids)
if refusal then return refusal end
local records, unready = packed.load(args.group_ids, 'ready')
if not records then return unready end
local members = packed.members(args.group_ids, records)
local answer, entries = taking.give(args.group_ids, members, records, owner.read(args.owner), control.version)
if not answer then return entries end
return taking.describe(session.close('claim', args.group_ids, unpack(answer)), entries)
