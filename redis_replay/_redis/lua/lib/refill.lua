-- refill: writes the groups of a restored run over the copies that were put in place.
--
-- Keys: slots prompts counters ends
-- include: listing
-- include: ready_sets
local refill = {}

local SLICE = 500

local function leave_out(left)
  local ids = {}
  for at, found in ipairs(left) do
    ids[at] = found.id
  end
  for at = 1, #ids, SLICE do
    local last = math.min(at + SLICE - 1, #ids)
    redis.call('HDEL', keys.slots, unpack(ids, at, last))
    redis.call('HDEL', keys.prompts, unpack(ids, at, last))
  end
  if #ids > 0 then
    redis.call('HINCRBY', keys.counters, 'removed', #ids)
    redis.call('HINCRBY', keys.ends, 'removed:restore', #ids)
  end
end

local function add(slots)
  for at = 1, #slots, SLICE do
    listing.add({ unpack(slots, at, math.min(at + SLICE - 1, #slots)) })
  end
end

-- Brings slots, sets and counters in step with the plan, and counts those left out as removed. Returns how many
-- groups are in each state. Sets of ready groups that are not in step afterwards are made anew.
function refill.groups(plan, staying, leaving, edit)
  local totals, bytes, stamped = { ready = plan.same, reserved = 0, quarantined = 0 }, plan.bytes, plan.same_stamped
  for _, found in ipairs(plan.slots) do
    totals[found.state], bytes = totals[found.state] + 1, bytes + (found.bytes or 0)
    if found.state == 'ready' and found.target then stamped = stamped + 1 end
  end
  leave_out(plan.left)
  if edit then ready_sets.change(plan.records, staying, leaving) else ready_sets.make(plan.records) end
  add(plan.slots)
  if ready_sets.differ(totals.ready, stamped) then
    ready_sets.make(plan.records)
    add(plan.slots)
  end
  redis.call('HSET', keys.counters, 'payload_bytes', text.whole(bytes))
  return totals
end
