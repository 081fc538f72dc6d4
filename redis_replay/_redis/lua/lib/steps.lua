-- steps: what the dispatch batch of each step has lost, replaced, borrowed and lent.
--
-- Fields "<index>:<what>". A gated policy without stamps trains whatever comes next, so what its passed
-- batches are short of is carried: "carry:lost" less "carry:replaced" is their losses not made good and the
-- groups trained from them, less a full batch for each of them. Below zero they have groups to spare.
-- Keys: meta steps
-- include: control
local steps = {}

-- Groups of a full batch and the first batch ever; nil where passed batches are not carried: they have
-- stamps, or no gate was passed.
local function carried()
  local kept = redis.call('HMGET', keys.meta, 'policy', 'groups_per_step', 'admitted')
  if not control.window or kept[1] == 'in_order' or not kept[3] then return nil end
  return tonumber(kept[2] or ''), tonumber(kept[3])
end

function steps.add(index, what, count)
  if count == 0 then return end
  local passed = index < control.version
  if passed and not carried() then return end
  redis.call('HINCRBY', keys.steps, (passed and 'carry:' or text.whole(index) .. ':') .. what, text.whole(count))
end

-- Credits each slot's loss to the batch it was meant for.
function steps.lose(slots)
  local lost = {}
  for _, found in ipairs(slots) do
    local index = found.target or found.dispatch
    if index then lost[index] = (lost[index] or 0) + 1 end
  end
  for index, count in pairs(lost) do
    steps.add(index, 'lost', count)
  end
end

-- Counts groups that a step has trained, whatever batch they came from.
function steps.train(count)
  if count > 0 and carried() then redis.call('HINCRBY', keys.steps, 'carry:lost', text.whole(count)) end
end

-- Folds the batches below the trainer version, which was `since` before.
function steps.fold(since)
  local groups_per_step, first = carried()
  local batches = groups_per_step and math.max(0, control.version - math.max(since, first)) or 0
  local carry, passed, listed = 0 - (groups_per_step or 0) * batches, {}, redis.call('HGETALL', keys.steps)
  for at = 1, #listed, 2 do
    local index, what = string.match(listed[at], '^(%w+):(%a+)$')
    local number = tonumber(index)
    if number and number < control.version or not (number or groups_per_step) then
      passed[#passed + 1] = listed[at]
      if what == 'lost' then carry = carry + tonumber(listed[at + 1]) end
      if what == 'replaced' then carry = carry - tonumber(listed[at + 1]) end
    end
  end
  if #passed > 0 then redis.call('HDEL', keys.steps, unpack(passed)) end
  if groups_per_step and carry ~= 0 then redis.call('HINCRBY', keys.steps, 'carry:lost', text.whole(carry)) end
end
