-- ready_sets: the sorted sets of many ready groups at once, from their records.
--
-- Most groups of a run that is restored are ready and live on as they were: their places are left alone.
-- Keys: ready ready_by_step ready_by_order
-- include: record
local ready_sets = {}

local SLICE = 500

-- Puts ready groups, given by id and record, on their sets, or takes them off, but for those that stay.
local function each_ready(command, records, staying)
  local arguments = { [keys.ready] = {}, [keys.ready_by_order] = {}, [keys.ready_by_step] = {} }
  local function put(key, score, member)
    local list = arguments[key]
    if command == 'ZADD' then list[#list + 1] = score end
    list[#list + 1] = member
    if #list >= 2 * SLICE then
      redis.call(command, key, unpack(list))
      arguments[key] = {}
    end
  end
  for id, packed in pairs(records) do
    local order, start, target = nil, nil, nil
    if not staying[id] then order, start, target = record.ready(packed) end
    if order then
      local member = string.rep('0', 16 - #order) .. order .. ':' .. id
      put(keys.ready, start, member)
      put(keys.ready_by_order, order, member)
      if target ~= '-' then put(keys.ready_by_step, target, member) end
    end
  end
  for key, list in pairs(arguments) do
    if #list > 0 then redis.call(command, key, unpack(list)) end
  end
end

function ready_sets.make(records)
  redis.call('UNLINK', keys.ready, keys.ready_by_order, keys.ready_by_step)
  each_ready('ZADD', records, {})
end

function ready_sets.change(records, staying, leaving)
  each_ready('ZREM', leaving, {})
  each_ready('ZADD', records, staying)
end

-- Whether the sets have other numbers of members than there are ready groups, and ones with a step.
function ready_sets.differ(ready, stamped)
  return redis.call('ZCARD', keys.ready) ~= ready or redis.call('ZCARD', keys.ready_by_order) ~= ready
    or redis.call('ZCARD', keys.ready_by_step) ~= stamped
end
