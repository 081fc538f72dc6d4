-- index: lists slots in, and takes them off, the sorted sets of their state.
--
-- Keys: the state's own set, its set by step, and its holder's set (see `slot`)
-- include: slot
local index = {}

local function entries(found)
  local state, score = found.state, text.whole(found.start)
  local listed = { { keys[state], score } }
  if state == 'quarantined' then return listed end
  if found.target then
    listed[2] = { keys[state .. '_by_step'], text.whole(found.target) }
  end
  if state == 'ready' then
    listed[#listed + 1] = { keys.ready_by_order, text.whole(found.order) }
  elseif found.epoch then
    listed[#listed + 1] = { keys[state .. '_by_owner'], text.whole(found.epoch) }
  elseif state == 'reserved' then
    listed[#listed + 1] = { keys.tickets, text.whole(found.order) }
  end
  return listed
end

-- One command a sorted set, however many slots: the cost of a claim is the cost of its members.
local function each_set(slots, add)
  local names, arguments = {}, {}
  for _, found in ipairs(slots) do
    local member = slot.member(found)
    for _, entry in ipairs(entries(found)) do
      local name, score = entry[1], entry[2]
      if not arguments[name] then
        names[#names + 1], arguments[name] = name, {}
      end
      local list = arguments[name]
      if add then list[#list + 1] = score end
      list[#list + 1] = member
    end
  end
  for _, name in ipairs(names) do
    redis.call(add and 'ZADD' or 'ZREM', name, unpack(arguments[name]))
  end
end

function index.remove(slots)
  each_set(slots, false)
end

function index.add(slots)
  each_set(slots, true)
  local records = {}
  for _, found in ipairs(slots) do
    records[#records + 1] = found.id
    records[#records + 1] = slot.format(found)
  end
  if #records > 0 then redis.call('HSET', keys.slots, unpack(records)) end
end

-- Moves slots: off the sets of what they were, changed, and onto the sets of what they are now.
function index.move(slots, change)
  index.remove(slots)
  for _, found in ipairs(slots) do
    change(found)
  end
  index.add(slots)
end
