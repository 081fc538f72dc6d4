-- taking: gives ready groups to a session as one training claim, whose number is their new fence.
--
-- Keys: slots ready ready_by_step ready_by_order claimed claimed_by_step claimed_by_owner groups counters
-- Refusals: CORRUPT
-- include: packed
-- include: manifest
local taking = {}

-- Moves groups from the sets of ready ones to those of claimed ones; targets are '-' for none.
local function move(members, starts, targets, epoch)
  local by_start, by_owner, stamped, by_step = {}, {}, {}, {}
  for at, member in ipairs(members) do
    by_start[2 * at - 1], by_start[2 * at] = starts[at], member
    by_owner[2 * at - 1], by_owner[2 * at] = epoch, member
    if targets[at] ~= '-' then
      stamped[#stamped + 1] = member
      by_step[2 * #stamped - 1], by_step[2 * #stamped] = targets[at], member
    end
  end
  redis.call('ZREM', keys.ready, unpack(members))
  redis.call('ZREM', keys.ready_by_order, unpack(members))
  redis.call('ZADD', keys.claimed, unpack(by_start))
  redis.call('ZADD', keys.claimed_by_owner, unpack(by_owner))
  if #stamped > 0 then
    redis.call('ZREM', keys.ready_by_step, unpack(stamped))
    redis.call('ZADD', keys.claimed_by_step, unpack(by_step))
  end
end

-- Returns the claim's answer (number, count, four words of each group in one string, the ids), and each group's
-- field in `groups`; or nil and a refusal.
function taking.give(ids, members, records, holder, step)
  local number, epoch = text.whole(control.draw('next_fence', 1)), text.whole(holder.epoch)
  local items, entries, facts, starts, targets = {}, {}, {}, {}, {}
  for at, id in ipairs(ids) do
    local line, start, finish, target, payload_fence = packed.claimed(records[at], number, epoch)
    if not line then return nil, control.head('CORRUPT', id) end
    items[2 * at - 1], items[2 * at] = id, line
    entries[at], starts[at], targets[at] = payload_fence .. ':' .. id, start, target
    facts[4 * at - 3], facts[4 * at - 2], facts[4 * at - 1], facts[4 * at] = start, finish, target, payload_fence
  end
  move(members, starts, targets, epoch)
  redis.call('HSET', keys.slots, unpack(items))
  redis.call('HINCRBY', keys.counters, 'claimed_total', #ids)
  manifest.write(number, holder, step, entries)
  return { number, text.whole(#ids), table.concat(facts, ' '), unpack(ids) }, entries
end

-- Appends the groups' immutable records to a claim's answer. They are not kept with it: a repetition of the call
-- reads them for itself.
function taking.describe(answer, entries)
  local records, length = redis.call('HMGET', keys.groups, unpack(entries)), #answer
  for at = 1, #entries do
    answer[length + at] = records[at] or ''
  end
  return answer
end
