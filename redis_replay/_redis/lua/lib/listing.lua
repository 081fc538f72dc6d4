-- listing: puts slots in, and takes them off, the sorted sets of their state.
--
-- A group is in the set of its state (scored by start weight version), in that state's set by target step if it
-- has one, and in the set that says who holds it; so a verb declares the sets of each state that it moves slots of.
-- Keys: slots ready_by_order tickets
-- include: slot
local listing = {}

local function entries(found, enter)
  local state, member = found.state, record.member(found)
  enter(keys[state], found.start, member)
  if state == 'quarantined' then return end
  if found.target then enter(keys[state .. '_by_step'], found.target, member) end
  if state == 'ready' then
    enter(keys.ready_by_order, found.order, member)
  elseif found.epoch then
    enter(keys[state .. '_by_owner'], found.epoch, member)
  elseif state == 'reserved' then
    enter(keys.tickets, found.order, member)
  end
end

-- One command a sorted set, however many slots: the cost of a claim is the cost of its members.
local function each_set(slots, add)
  local names, arguments = {}, {}
  local function enter(name, score, member)
    if not arguments[name] then names[#names + 1], arguments[name] = name, {} end
    local list = arguments[name]
    if add then list[#list + 1] = text.whole(score) end
    list[#list + 1] = member
  end
  for _, found in ipairs(slots) do
    entries(found, enter)
  end
  for _, name in ipairs(names) do
    redis.call(add and 'ZADD' or 'ZREM', name, unpack(arguments[name]))
  end
end

function listing.remove(slots)
  each_set(slots, false)
end

-- Returns each slot's id and record in turn, and so does `listing.move`.
function listing.add(slots)
  local items = slot.items(slots)
  each_set(slots, true)
  if #slots > 0 then redis.call('HSET', keys.slots, unpack(items)) end
  return items
end

-- Moves slots: off the sets of what they were, changed, and onto the sets of what they are now.
function listing.move(slots, change)
  listing.remove(slots)
  for _, found in ipairs(slots) do
    change(found)
  end
  return listing.add(slots)
end
