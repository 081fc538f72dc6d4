-- claim: pass the ready groups that a policy's rule picks into training ownership.
--
-- Why atomic: groups are picked and taken in one step, so two trainers never share one. One script
-- serves all built-in samplers; the rule and its numbers are data.
-- Keys: meta slots reserved ready claimed ready_by_step claimed_by_step ready_by_order claimed_by_owner
--   batches groups counters sessions owners events
-- Args: rule lowest highest minimum maximum
-- States: ready -> claimed
-- Returns: the claim number, the number of groups, each one's id and slot, then each one's immutable record (not when
--   repeated); nothing when fewer than minimum
-- Refusals: TOO_MANY CORRUPT
-- include: session
-- include: pick
-- include: owner
-- include: batch
local refusal = session.open()
if refusal then return refusal end
local members = pick[args.rule]()
if #members < args.minimum then return control.head('OK') end
refusal = batch.check_room(args.epoch, #members)
if refusal then return refusal end
local slots, corrupt = slot.load_listed(members, 'ready')
if not slots then return corrupt end
local number, items = batch.give(slots, owner.read(args.owner), args.highest)
redis.call('HINCRBY', keys.counters, 'claimed_total', #slots)
local answer = session.close('claim', slot.ids(members), text.whole(number), text.whole(#slots), unpack(items))
return batch.describe(answer, slots)
