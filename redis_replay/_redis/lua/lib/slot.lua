-- slot: live groups by id, loaded with the states that a verb may find them in.
--
-- The states that a verb names here are the sources in its header and in the transition table.
-- Keys: slots
-- Refusals: UNKNOWN STATE CORRUPT
-- include: control
-- include: record
local slot = {}

function slot.ids(members)
  local ids = {}
  for at = 1, #members do
    ids[at] = record.id_of(members[at])
  end
  return ids
end

-- Each slot's id and record in turn, as replies and HSET take them.
function slot.items(slots)
  local items = {}
  for at, found in ipairs(slots) do
    items[2 * at - 1], items[2 * at] = found.id, record.format(found)
  end
  return items
end

-- Loads slots in any state. Returns nil and a refusal that names the first absent one.
function slot.find(ids, members)
  if #ids == 0 then return {} end
  local records, slots = redis.call('HMGET', keys.slots, unpack(ids)), {}
  for at = 1, #ids do
    if not records[at] then return nil, control.head('UNKNOWN', ids[at]) end
    slots[at] = record.parse(ids[at], records[at], members and members[at])
  end
  return slots
end

-- The refusal that names the first slot in none of the states, or nil.
function slot.unfit(slots, states)
  local fit = ' ' .. states .. ' '
  for _, found in ipairs(slots) do
    if found.state ~= states and not string.find(fit, ' ' .. found.state .. ' ', 1, true) then
      return control.head('STATE', found.id, found.state)
    end
  end
end

function slot.load(ids, states, members)
  local slots, refusal = slot.find(ids, members)
  if slots then refusal = slot.unfit(slots, states) end
  return not refusal and slots or nil, refusal
end

-- Loads the slots that a sorted set lists; a member without such a slot means a damaged keyspace.
function slot.load_listed(members, states)
  local slots, refusal = slot.load(slot.ids(members), states, members)
  if refusal then return nil, control.head('CORRUPT', refusal[6]) end
  return slots
end
