-- holding: what sessions that have ended still hold, and its way back.
--
-- A reserved group becomes a redispatch ticket, a claimed one ready at its old place. A group that was held
-- at a death counts an attempt; past the limit it is quarantined. What was selected for good is let go.
-- Keys: meta reserved_by_owner claimed_by_owner counters lost sessions
-- include: retire
-- include: owner
-- include: manifest
-- include: selected
local holding = {}

-- Loads what a session holds, claims first, `limit` groups at most. Returns nil and a refusal.
function holding.load(name, epoch, counted, limit)
  local claimed, damaged = slot.load_listed(owner.held(keys.claimed_by_owner, epoch, limit), 'claimed')
  if damaged then return nil, damaged end
  local room = limit - #claimed
  local reserved, corrupt = slot.load_listed(owner.held(keys.reserved_by_owner, epoch, room), 'reserved')
  if corrupt then return nil, corrupt end
  return { name = name, epoch = text.whole(epoch), counted = counted, reserved = reserved, claimed = claimed,
    selected = selected.of(epoch), more = #reserved == room }
end

-- Gives back what was loaded, under one fence. Returns the ids, and how many were quarantined. What remains of
-- a session is noted in `lost` for the next call; of one that holds nothing any more nothing is kept.
function holding.give_back(held, fence)
  local limits = redis.call('HMGET', keys.meta, 'max_attempts', 'max_requeues')
  local most_attempts, most_requeues = tonumber(limits[1]), tonumber(limits[2])
  local ids, quarantined = {}, {}
  selected.let_go(held.selected)
  retire.leftovers(held.reserved)
  retire.leftovers(held.claimed)
  listing.move(held.reserved, function(found)
    found.epoch, found.fence, found.attempt = nil, fence, found.attempt + held.counted
    if found.attempt > most_attempts then found.state, quarantined[#quarantined + 1] = 'quarantined', found end
    ids[#ids + 1] = found.id
  end)
  manifest.forget(held.claimed, {})
  listing.move(held.claimed, function(found)
    found.epoch, found.fence, found.batch, found.written = nil, fence, nil, nil
    found.state, found.requeues = 'ready', found.requeues + held.counted
    if found.requeues > most_requeues then found.state, quarantined[#quarantined + 1] = 'quarantined', found end
    ids[#ids + 1] = found.id
  end)
  steps.lose(quarantined)
  if #held.claimed > 0 then redis.call('HINCRBY', keys.counters, 'requeued_total', #held.claimed) end
  if held.more then
    redis.call('HSET', keys.lost, held.epoch, text.whole(held.counted) .. ' ' .. held.name)
  else
    redis.call('HDEL', keys.lost, held.epoch)
    for number = 0, 15 do
      redis.call('HDEL', keys.sessions, held.epoch .. ':' .. number)
    end
  end
  return ids, #quarantined
end
