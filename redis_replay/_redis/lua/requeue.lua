-- requeue: give claimed groups back: ready again, at their old place in buffer order.
--
-- Why atomic: all named groups come back or none, and their old claim can settle nothing any more.
-- Keys: meta slots ready claimed quarantined ready_by_step claimed_by_step ready_by_order claimed_by_owner
--   batches acks counters dead steps sessions owners events
-- Args: all failed group_ids
-- States: claimed -> ready quarantined
-- Returns: groups requeued, groups quarantined
-- Refusals: UNKNOWN STATE MISMATCH CORRUPT
-- include: session
-- include: retire
-- include: owner
-- include: manifest
local refusal = session.open()
if refusal then return refusal end
local held, corrupt = slot.load_listed(owner.held(keys.claimed_by_owner, args.epoch, 1025), 'claimed')
if not held then return corrupt end
local slots, unclaimed = held, nil
if args.all == 0 then
  slots, unclaimed = slot.load(args.group_ids, 'claimed')
  if not slots then return unclaimed end
end
local given = {}
for _, found in ipairs(slots) do
  if found.epoch ~= args.epoch then return control.head('MISMATCH', text.pack({ found.id }), '') end
  given[found.id] = true
end
local remaining, ids, quarantined = {}, {}, {}
for _, found in ipairs(held) do
  if not given[found.id] then remaining[#remaining + 1] = found end
end
local limit = tonumber(redis.call('HGET', keys.meta, 'max_requeues'))
local fence = control.draw('next_fence', 1)
retire.leftovers(slots)
manifest.forget(slots, remaining)
listing.move(slots, function(found)
  found.state, found.epoch, found.fence, found.batch, found.written = 'ready', nil, fence, nil, nil
  found.requeues = found.requeues + args.failed
  if found.requeues > limit then found.state, quarantined[#quarantined + 1] = 'quarantined', found end
  ids[#ids + 1] = found.id
end)
steps.lose(quarantined)
if #ids > 0 then redis.call('HINCRBY', keys.counters, 'requeued_total', #ids) end
return session.close('requeue', ids, text.whole(#ids), text.whole(#quarantined))
