-- reinstate: bring quarantined groups back, all or none: finished ones ready, unfinished ones as redispatch tickets.
--
-- Why atomic: the places they need are counted in the step that takes them, and their steps have them back at once.
-- Their attempts and requeues are counted from the beginning.
-- Keys: meta slots reserved ready claimed quarantined reserved_by_step ready_by_step ready_by_order
--   reserved_by_owner tickets steps sessions owners events
-- Args: group_ids
-- States: quarantined -> ready reserved
-- Returns: groups that are ready, tickets
-- Refusals: UNKNOWN STATE FULL
-- include: session
-- include: listing
-- include: steps
local refusal = session.open()
if refusal then return refusal end
local slots, unfit = slot.load(args.group_ids, 'quarantined')
if not slots then return unfit end
local capacity = redis.call('HGET', keys.meta, 'capacity')
local taken = redis.call('ZCARD', keys.reserved) + redis.call('ZCARD', keys.ready) + redis.call('ZCARD', keys.claimed)
if taken + #slots > tonumber(capacity) then
  return control.head('FULL', capacity, text.whole(taken), text.whole(#slots))
end

local fence, ready = control.draw('next_fence', 1), 0
listing.move(slots, function(found)
  found.state = found.payload_fence and 'ready' or 'reserved'
  found.fence, found.attempt, found.requeues = fence, 1, 0
  if found.payload_fence then ready = ready + 1 end
end)
for _, found in ipairs(slots) do
  local index = found.target or found.dispatch
  if index then steps.add(index, 'replaced', 1) end
end
return session.close('reinstate', args.group_ids, text.whole(ready), text.whole(#slots - ready))
