-- revive: what becomes of each slot that a checkpoint has kept.
--
-- A finished group is ready again; an unfinished one becomes a redispatch ticket, since nobody holds it any
-- more, and so does a finished one whose rows are not wanted or damaged; a quarantined one stays so.
-- Keys: none
-- Args: mode incomplete damaged
-- include: record
local revive = {}

local function at_rest(found, rows_wanted, fence)
  local finished = found.payload_fence and rows_wanted
  if not finished then found.payload_fence, found.finish, found.bytes = nil, nil, nil end
  if found.state == 'quarantined' then return end
  if not finished or found.state == 'claimed' then found.fence = fence end
  found.state = finished and 'ready' or 'reserved'
  found.epoch, found.batch, found.written = nil, nil, nil
end

-- Reads the copies. Returns the slots to restore and to leave out, the highest order, how many places are
-- taken, and how many groups each step has, with whether any group has a step.
function revive.plan(groups_per_step, version, fence)
  local stored, regenerate, slots = redis.call('HGETALL', saved[1].slots), {}, {}
  local plan = { slots = {}, left = {}, highest = 0, placed = 0, counts = {}, stamped = false }
  for _, id in ipairs(args.damaged) do
    regenerate[id] = true
  end
  for at = 1, #stored, 2 do
    local found = record.parse(stored[at], stored[at + 1])
    at_rest(found, args.mode == 'all' and not regenerate[found.id], fence)
    slots[#slots + 1], plan.highest = found, math.max(plan.highest, found.order)
    if found.target and found.state ~= 'quarantined' then
      plan.counts[found.target], plan.stamped = (plan.counts[found.target] or 0) + 1, true
    end
  end
  for _, found in ipairs(slots) do
    local holds_place = found.state ~= 'quarantined'
    local step = holds_place and found.target
    local short = step and step >= version and plan.counts[step] < groups_per_step
    local leave = args.mode == 'none' or args.incomplete == 'drop' and short
    local list = leave and plan.left or plan.slots
    list[#list + 1] = found
    if holds_place and not leave then plan.placed = plan.placed + 1 end
  end
  return plan
end

-- The admitted batches that must be dispatched again, wholly or in part, since they are not full. Which
-- groups a batch without stamps has is not known, so it is dispatched again only when none are restored.
function revive.open_indexes(plan, groups_per_step, version, cursor)
  local open = {}
  if args.mode ~= 'none' and (args.incomplete == '' or not plan.stamped) then return open end
  for index = math.max(version, cursor - 1023), cursor do
    local whole = args.mode ~= 'none' and (plan.counts[index] or 0) >= groups_per_step
    if not whole then open[#open + 1] = text.whole(index) end
  end
  return open
end
