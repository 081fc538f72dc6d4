-- revive: what becomes of each slot that a checkpoint has kept.
--
-- A finished group is ready again; an unfinished one becomes a redispatch ticket, since nobody holds it any
-- more, and so does a finished one whose rows are not wanted or damaged. No attempt is counted.
-- Keys: none
-- Args: mode incomplete damaged
-- include: record
local revive = {}

-- Reads the copies. Returns the slots to restore, the slots to leave out, and the highest order.
function revive.plan(groups_per_step, version, fence)
  local stored, regenerate, slots, counts, highest = redis.call('HGETALL', saved[1].slots), {}, {}, {}, 0
  for _, id in ipairs(args.damaged) do
    regenerate[id] = true
  end
  for at = 1, #stored, 2 do
    local found = record.parse(stored[at], stored[at + 1])
    slots[#slots + 1], highest = found, math.max(highest, found.order)
    if found.state ~= 'quarantined' then
      local finished = found.state ~= 'reserved' and args.mode == 'all' and not regenerate[found.id]
      if not finished then found.state, found.payload_fence, found.finish, found.bytes = 'reserved', nil, nil, nil end
      if not finished or found.state == 'claimed' then found.fence = fence end
      if finished then found.state = 'ready' end
      found.epoch, found.batch, found.written = nil, nil, nil
      if found.target then counts[found.target] = (counts[found.target] or 0) + 1 end
    end
  end
  local kept, left = {}, {}
  for _, found in ipairs(slots) do
    local short = found.target and found.target >= version and (counts[found.target] or 0) < groups_per_step
    local leave = args.mode == 'none' or args.incomplete == 'drop' and short and found.state ~= 'quarantined'
    local list = leave and left or kept
    list[#list + 1] = found
  end
  return kept, left, highest, counts
end

-- The admitted batches that must be dispatched again, wholly or in part, since they are not full.
function revive.open_indexes(groups_per_step, version, cursor, counts)
  local open = {}
  if args.mode ~= 'none' and args.incomplete == '' then return open end
  for index = math.max(version, cursor - 1023), cursor do
    local whole = args.mode ~= 'none' and (counts[index] or 0) >= groups_per_step
    if not whole then open[#open + 1] = text.whole(index) end
  end
  return open
end

-- How many of the slots hold a place in the buffer.
function revive.placed(slots)
  local count = 0
  for _, found in ipairs(slots) do
    if found.state ~= 'quarantined' then count = count + 1 end
  end
  return count
end
