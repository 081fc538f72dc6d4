-- weight: walks a sorted set that is scored by weight version (or step), one version at a time.
--
-- Members of one version are in buffer order, which is never reversed: a walk to older versions goes
-- down the versions and up the members. A bound is a number, or "(<version>" to exclude it.
-- Args: lowest highest
-- include: text
local weight = {}

local function bound(value)
  return type(value) == 'number' and text.whole(value) or value
end

-- The first members of a set that lists the same groups in buffer order, if all of them are from a bound on and of
-- the window, as the ready groups mostly are; else false.
function weight.head(key, from, ordered, limit)
  local within = redis.call('ZCOUNT', key, bound(from), text.whole(args.highest))
  return within == redis.call('ZCARD', key) and within == redis.call('ZCARD', ordered)
    and redis.call('ZRANGE', ordered, 0, limit - 1)
end

-- The smallest version from a bound on, up to the highest of the window, or nil.
function weight.above(key, from)
  return redis.call('ZRANGEBYSCORE', key, bound(from), text.whole(args.highest), 'LIMIT', 0, 1, 'WITHSCORES')[2]
end

-- The largest version down from a bound, to the lowest of the window, or nil.
function weight.below(key, from)
  return redis.call('ZREVRANGEBYSCORE', key, bound(from), text.whole(args.lowest), 'LIMIT', 0, 1, 'WITHSCORES')[2]
end

-- Appends the first members of a version, and returns the list.
function weight.append(members, key, number, limit)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', key, number, number, 'LIMIT', 0, limit)) do
    members[#members + 1] = member
  end
  return members
end

-- The first members of several versions in buffer order, each version's being in that order already.
function weight.merge(versions, limit)
  if #versions == 1 then return versions[1] end
  local members, from = {}, {}
  while #members < limit do
    local first, least
    for at = 1, #versions do
      local member = versions[at][from[at] or 1]
      if member and (not least or member < least) then first, least = at, member end
    end
    if not first then break end
    members[#members + 1], from[first] = least, (from[first] or 1) + 1
  end
  return members
end
