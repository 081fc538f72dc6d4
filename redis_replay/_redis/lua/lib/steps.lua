-- steps: what the dispatch batch of each step has lost, replaced, borrowed and lent.
--
-- Fields "<index>:<what>". A passed batch is folded into "carry:lost": the groups that a gated policy
-- without stamps is still short of, since it trains whatever comes next.
-- Keys: steps
-- include: control
local steps = {}

function steps.add(index, what, count)
  if count ~= 0 then
    local field = index < control.version and 'carry:' or text.whole(index) .. ':'
    redis.call('HINCRBY', keys.steps, field .. what, text.whole(count))
  end
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

-- Forgets the batches below the trainer version. `trained` is nil where no batch was trained.
function steps.fold(policy, groups_per_step, trained)
  local carry, passed, listed = 0, {}, redis.call('HGETALL', keys.steps)
  for at = 1, #listed, 2 do
    local index, what = string.match(listed[at], '^(%d+):(%a+)$')
    if index and tonumber(index) < control.version then
      passed[#passed + 1] = listed[at]
      if what == 'lost' then carry = carry + tonumber(listed[at + 1]) end
      if what == 'replaced' then carry = carry - tonumber(listed[at + 1]) end
    end
  end
  if #passed > 0 then redis.call('HDEL', keys.steps, unpack(passed)) end
  if not control.window or policy == 'in_order' or not groups_per_step then return end
  if trained then carry = carry - (groups_per_step - trained) end
  if carry ~= 0 then redis.call('HINCRBY', keys.steps, 'carry:lost', text.whole(carry)) end
end
