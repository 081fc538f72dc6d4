-- claim: pass the ready groups that a policy's rule picks into training ownership.
--
-- Why atomic: groups are picked and taken in one step, so two trainers never share one. One script
-- serves all built-in samplers; the rule and its numbers are data.
-- Keys: meta slots reserved ready claimed ready_by_step claimed_by_step ready_by_order claimed_by_owner
--   batches groups counters sessions owners events
-- Args: rule lowest highest minimum maximum policy
-- States: ready -> claimed
-- Returns: the claim number, the number of groups, four words of each (start, finish, target and payload fence) in one
--   string, their ids, then their immutable records (not when repeated); nothing when fewer than minimum
-- Refusals: POLICY TOO_MANY CORRUPT
-- include: session
-- include: policy
-- include: pick
-- include: owner
-- include: batch
-- include: taking
local refusal = session.open()
if refusal then return refusal end
refusal = policy.check()
if refusal then return refusal end
local members = pick[args.rule]()
if #members < args.minimum then return control.head('OK') end
refusal = batch.check_room(args.epoch, #members)
if refusal then return refusal end
local ids = slot.ids(members)
local records, corrupt = packed.load_listed(ids, 'ready')
if not records then return corrupt end
local answer, entries = taking.give(ids, members, records, owner.read(args.owner), args.highest)
if not answer then return entries end
return taking.describe(session.close('claim', ids, unpack(answer)), entries)
