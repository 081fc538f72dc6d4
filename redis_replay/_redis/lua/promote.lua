-- promote: lend a finished group of the furthest later step to an earlier one.
--
-- Why atomic: lender and step are chosen and restamped in one step. Reserved groups never lend.
-- Keys: meta slots ready ready_by_step ready_by_order steps sessions owners events
-- Args: to_step
-- States: ready -> ready
-- Returns: the step it came from and the group; nothing when there is no lender
-- Refusals: PASSED CORRUPT
-- include: session
-- include: listing
-- include: steps
local refusal = session.open()
if refusal then return refusal end
if args.to_step < control.version then return control.head('PASSED', text.whole(args.to_step)) end
local above = '(' .. text.whole(args.to_step)
local furthest = redis.call('ZREVRANGEBYSCORE', keys.ready_by_step, '+inf', above, 'LIMIT', 0, 1, 'WITHSCORES')[2]
if not furthest then return control.head('OK') end
local members = redis.call('ZRANGEBYSCORE', keys.ready_by_step, furthest, furthest, 'LIMIT', 0, 1)
local slots, corrupt = slot.load_listed(members, 'ready')
if not slots then return corrupt end
local came_from = slots[1].target
listing.move(slots, function(found)
  found.target = args.to_step
end)
steps.add(args.to_step, 'borrowed', 1)
steps.add(came_from, 'lent', 1)
return session.close('promote', { slots[1].id }, text.whole(came_from), slots[1].id)
