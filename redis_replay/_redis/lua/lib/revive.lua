-- revive: what becomes of each slot that a checkpoint has kept.
--
-- Most are ready and come back as they are: of those only the records are kept, which are compared with the live ones.
-- Keys: none
-- Args: mode incomplete damaged
-- include: record
-- include: rest
local revive = {}

-- Takes a ready group whose record comes back as it is. Returns whether it is one.
local function unchanged(plan, id, packed)
  if args.mode ~= 'all' or args.incomplete ~= '' or plan.regenerate[id] then return false end
  local order, _, target, _, bytes = record.ready(packed)
  if not order then return false end
  plan.same, plan.bytes = plan.same + 1, plan.bytes + tonumber(bytes)
  plan.highest = math.max(plan.highest, tonumber(order))
  if target ~= '-' then plan.same_stamped = plan.same_stamped + 1 end
  plan.records[id] = packed
  return true
end

-- Reads the copies. Returns the records of ready groups that come back as they are, with their number and bytes,
-- the other slots to restore and those to leave out, the highest order, how many places are taken, and how many of
-- the other groups each step has, with whether any group has a step.
function revive.plan(groups_per_step, version, fence)
  local stored, slots = redis.call('HGETALL', saved[1].slots), {}
  local plan = { records = {}, same = 0, same_stamped = 0, bytes = 0, slots = {}, left = {}, highest = 0, placed = 0,
    counts = {}, stamped = false, regenerate = {} }
  for _, id in ipairs(args.damaged) do
    plan.regenerate[id] = true
  end
  for at = 1, #stored, 2 do
    local id, packed = stored[at], stored[at + 1]
    if not unchanged(plan, id, packed) then
      local found = record.parse(id, packed)
      rest.settle(found, args.mode == 'all' and not plan.regenerate[id], fence)
      slots[#slots + 1], plan.highest = found, math.max(plan.highest, found.order)
      if found.target and found.state ~= 'quarantined' then
        plan.counts[found.target], plan.stamped = (plan.counts[found.target] or 0) + 1, true
      end
    end
  end
  plan.placed = plan.same
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
