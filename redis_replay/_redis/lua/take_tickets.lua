-- take_tickets: give redispatch tickets to a session, each with a new fence and start weight.
--
-- Why atomic: a ticket goes to exactly one session. It keeps its order, target step and prompt.
-- Keys: meta slots reserved reserved_by_step reserved_by_owner tickets sessions owners events
-- Args: maximum weight
-- States: reserved -> reserved
-- Returns: each group's id and record
-- Refusals: CORRUPT
-- include: session
-- include: listing
local refusal = session.open()
if refusal then return refusal end
local members = redis.call('ZRANGE', keys.tickets, 0, args.maximum - 1)
if #members == 0 then return control.head('OK') end
local slots, corrupt = slot.load_listed(members, 'reserved')
if not slots then return corrupt end
local fence = control.draw('next_fence', 1)
listing.move(slots, function(found)
  found.epoch, found.fence, found.start = args.epoch, fence, math.max(found.start, args.weight)
end)
return session.close('tickets', slot.ids(members), unpack(slot.items(slots)))
