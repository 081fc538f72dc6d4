-- pick: the ready groups that a policy's rule makes eligible, in its order, at most `maximum`.
--
-- `buffer` and `freshest` merge the versions of the window; `oldest_version` waits for the smallest
-- in-window version among reserved and ready groups; `arrival` walks all ready groups in buffer order
-- and passes over those from the future; `step` reads one target step.
-- Keys: ready reserved ready_by_step ready_by_order
-- Args: rule lowest highest maximum
-- include: text
local pick = {}

local function at_score(key, score, limit)
  return redis.call('ZRANGEBYSCORE', key, score, score, 'LIMIT', 0, limit)
end

local function next_version(key, above)
  return redis.call('ZRANGEBYSCORE', key, above, text.whole(args.highest), 'LIMIT', 0, 1, 'WITHSCORES')[2]
end

function pick.buffer()
  local members, version = {}, next_version(keys.ready, text.whole(args.lowest))
  while version do
    for _, member in ipairs(at_score(keys.ready, version, args.maximum)) do
      members[#members + 1] = member
    end
    version = next_version(keys.ready, '(' .. version)
  end
  table.sort(members)
  for at = #members, args.maximum + 1, -1 do
    members[at] = nil
  end
  return members
end

function pick.freshest()
  local members, below = {}, text.whole(args.highest)
  while #members < args.maximum do
    local version = redis.call('ZREVRANGEBYSCORE', keys.ready, below, text.whole(args.lowest), 'LIMIT', 0, 1,
      'WITHSCORES')[2]
    if not version then break end
    for _, member in ipairs(at_score(keys.ready, version, args.maximum - #members)) do
      members[#members + 1] = member
    end
    below = '(' .. version
  end
  return members
end

function pick.oldest_version()
  local from = text.whole(args.lowest)
  local reserved, ready = next_version(keys.reserved, from), next_version(keys.ready, from)
  if not ready or (reserved and tonumber(reserved) < tonumber(ready)) then return {} end
  return at_score(keys.ready, ready, args.maximum)
end

function pick.step()
  return at_score(keys.ready_by_step, text.whole(args.highest), args.maximum)
end

function pick.arrival()
  local members, from = {}, 0
  while #members < args.maximum do
    local slice = redis.call('ZRANGE', keys.ready_by_order, from, from + args.maximum - 1)
    for _, member in ipairs(slice) do
      if #members < args.maximum and tonumber(redis.call('ZSCORE', keys.ready, member)) <= args.highest then
        members[#members + 1] = member
      end
    end
    if #slice < args.maximum then break end
    from = from + args.maximum
  end
  return members
end
