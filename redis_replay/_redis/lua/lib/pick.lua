-- pick: the ready groups that a policy's rule makes eligible, in its order, at most `maximum`.
--
-- `buffer` and `freshest` merge the versions of the window; `oldest_version` waits for the smallest
-- in-window version among reserved and ready groups; `arrival` walks all ready groups in buffer order
-- and passes over those from the future; `step` reads one target step.
-- Keys: ready reserved ready_by_step ready_by_order
-- Args: lowest highest maximum
-- include: weight
local pick = {}

function pick.buffer()
  local first = weight.head(keys.ready, args.lowest, keys.ready_by_order, args.maximum)
  if first then return first end
  local versions, number = {}, weight.above(keys.ready, args.lowest)
  while number do
    versions[#versions + 1] = weight.append({}, keys.ready, number, args.maximum)
    number = weight.above(keys.ready, '(' .. number)
  end
  return weight.merge(versions, args.maximum)
end

function pick.freshest()
  local members, number = {}, weight.below(keys.ready, args.highest)
  while number and #members < args.maximum do
    weight.append(members, keys.ready, number, args.maximum - #members)
    number = weight.below(keys.ready, '(' .. number)
  end
  return members
end

function pick.oldest_version()
  local reserved, ready = weight.above(keys.reserved, args.lowest), weight.above(keys.ready, args.lowest)
  if not ready or (reserved and tonumber(reserved) < tonumber(ready)) then return {} end
  return weight.append({}, keys.ready, ready, args.maximum)
end

function pick.step()
  return weight.append({}, keys.ready_by_step, text.whole(args.highest), args.maximum)
end

function pick.arrival()
  local first = weight.head(keys.ready, '-inf', keys.ready_by_order, args.maximum)
  if first then return first end
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
