-- end_owner: end a session that detached, was silent for a lease or was replaced, and give back what it held.
--
-- Why atomic: heartbeat and epoch are compared in the step that fences, so a session that lives is never
-- ended. Then up to `limit` groups: reserved ones become redispatch tickets, claimed ones ready at their
-- old place. A group that was held at a death counts an attempt; past the limit it is quarantined.
-- May be repeated until nothing remains; a repetition changes nothing more.
-- Keys: meta slots reserved ready claimed quarantined reserved_by_step ready_by_step claimed_by_step
--   ready_by_order reserved_by_owner claimed_by_owner tickets owners lost sessions batches acks counters dead
--   steps events
-- Args: owner epoch heartbeat planned limit
-- States: reserved -> reserved quarantined; claimed -> ready quarantined
-- Returns: tickets made, groups requeued, groups quarantined, whether more remain
-- Refusals: ALIVE CORRUPT
-- include: retire
-- include: owner
-- include: manifest
local refusal = control.open()
if refusal then return refusal end
local epoch = text.whole(args.epoch)
local holder, lost = owner.read(args.owner), redis.call('HGET', keys.lost, epoch)
local attached = holder and holder.epoch == args.epoch
if attached then
  if args.heartbeat and holder.heartbeat ~= args.heartbeat then
    return control.head('ALIVE', text.whole(holder.heartbeat))
  end
  lost = (args.planned == 1 and '0 ' or '1 ') .. args.owner
end
if not lost then return control.head('OK', '0', '0', '0', '0') end
local counted = tonumber(string.sub(lost, 1, 1))
local reserved, corrupt = slot.load_listed(owner.held(keys.reserved_by_owner, args.epoch, args.limit), 'reserved')
if corrupt then return corrupt end
local claimed, damaged = slot.load_listed(owner.held(keys.claimed_by_owner, args.epoch, args.limit), 'claimed')
if damaged then return damaged end
local limits = redis.call('HMGET', keys.meta, 'max_attempts', 'max_requeues')
local most_attempts, most_requeues = tonumber(limits[1]), tonumber(limits[2])

local fence, ids, quarantined = control.draw('next_fence', 1), {}, {}
if attached then
  redis.call('HDEL', keys.owners, args.owner)
  redis.call('HSET', keys.lost, epoch, lost)
end
retire.leftovers(reserved)
retire.leftovers(claimed)
listing.move(reserved, function(found)
  found.epoch, found.fence, found.attempt = nil, fence, found.attempt + counted
  if found.attempt > most_attempts then found.state, quarantined[#quarantined + 1] = 'quarantined', found end
  ids[#ids + 1] = found.id
end)
manifest.forget(claimed, {})
listing.move(claimed, function(found)
  found.epoch, found.fence, found.batch, found.written = nil, fence, nil, nil
  found.state, found.requeues = 'ready', found.requeues + counted
  if found.requeues > most_requeues then found.state, quarantined[#quarantined + 1] = 'quarantined', found end
  ids[#ids + 1] = found.id
end)
steps.lose(quarantined)
if #claimed > 0 then redis.call('HINCRBY', keys.counters, 'requeued_total', #claimed) end
local more = #reserved == args.limit or #claimed == args.limit
if not more then
  redis.call('HDEL', keys.lost, epoch)
  for number = 0, 15 do
    redis.call('HDEL', keys.sessions, epoch .. ':' .. number)
  end
end
control.close('end_owner', ids, args.owner)
return control.head('OK', text.whole(#reserved), text.whole(#claimed), text.whole(#quarantined), more and '1' or '0')
