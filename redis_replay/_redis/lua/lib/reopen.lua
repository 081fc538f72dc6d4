-- reopen: the admitted batches that a restored run dispatches again, wholly or in part.
--
-- Keys: admissions steps
-- Args: mode incomplete
-- include: text
local reopen = {}

-- Those that are not full. Which groups a batch without stamps has is not known, so it is dispatched again only when
-- none are restored.
local function indexes(plan, groups_per_step, version, cursor)
  local open = {}
  if args.mode ~= 'none' and (args.incomplete == '' or not plan.stamped) then return open end
  for index = math.max(version, cursor - 1023), cursor do
    local whole = args.mode ~= 'none' and (plan.counts[index] or 0) >= groups_per_step
    if not whole then open[#open + 1] = text.whole(index) end
  end
  return open
end

-- Has the next dispatcher get them again. Returns how many there are.
function reopen.batches(plan, groups_per_step, version, cursor)
  local open = indexes(plan, groups_per_step, version, cursor)
  for _, index in ipairs(open) do
    redis.call('HSET', keys.admissions, index, '0 restore')
    redis.call('HDEL', keys.steps, index .. ':lost', index .. ':replaced', index .. ':borrowed', index .. ':lent')
  end
  if args.mode == 'none' then redis.call('HDEL', keys.steps, 'carry:lost', 'carry:replaced') end
  return #open
end
