-- listing: puts slots in, and takes them off, the sorted sets of their state.
--
-- A group is in the set of its state (scored by start weight version), in that state's set by target
-- step if it has one, and in the set that says who holds it; so a verb declares the sets of each
-- state that it takes slots from or puts them in.
-- Keys: slots ready_by_order tickets
-- include: slot
local listing = {}

local function entries(found)
  local state, score = found.state, text.whole(found.start)
  local listed = { { keys[state], score } }
  if state == 'quarantined' then return listed end
  if found.target then listed[2] = { keys[state .. '_by_step'], text.whole(found.target) } end
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
    local member = record.member(found)
    for _, entry in ipairs(entries(found)) do
      local name, score = entry[1], entry[2]
      if not arguments[name] then names[#names + 1], arguments[name] = name, {} end
      local list = arguments[name]
      if add then list[#list + 1] = score end
      list[#list + 1] = member
    end
  end
  for _, name in ipairs(names) do
    redis.call(add and 'ZADD' or 'ZREM', name, unpack(arguments[name]))
  end
end

function listing.remove(slots)
  each_set(slots, false)
end

function listing.add(slots)
  each_set(slots, true)
  if #slots > 0 then redis.call('HSET', keys.slots, unpack(slot.items(slots))) end
end

-- Moves slots: off the sets of what they were, changed, and onto the sets of what they are now.
function listing.move(slots, change)
  listing.remove(slots)
  for _, found in ipairs(slots) do
    change(found)
  end
  listing.add(slots)
end
