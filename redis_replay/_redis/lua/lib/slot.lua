-- slot: the packed record of a live group, and the sorted sets that list it.
--
-- A group is in the set of its state (scored by start weight version), in that state's set by target
-- step if it has one, and in the set that says who holds it. Members are "<order>:<group id>" with a
-- fixed-width order, so equal scores are in buffer order.
-- Keys: slots
-- Refusals: UNKNOWN STATE CORRUPT
-- include: control
local slot = {}

local FIELDS = { 'state', 'order', 'fence', 'start', 'finish', 'target', 'payload_fence', 'epoch', 'attempt',
  'batch', 'requeues', 'written', 'bytes' }

function slot.parse(group_id, record)
  local words, found = text.words(record), { id = group_id }
  for at = 2, #FIELDS do
    found[FIELDS[at]] = tonumber(words[at])
  end
  found.state = words[1]
  return found
end

function slot.format(found)
  local words = { found.state }
  for at = 2, #FIELDS do
    local value = found[FIELDS[at]]
    words[at] = value and text.whole(value) or '-'
  end
  return table.concat(words, ' ')
end

function slot.member(found)
  return string.format('%016.0f:', found.order) .. found.id
end

function slot.ids(members)
  local ids = {}
  for at = 1, #members do
    ids[at] = string.sub(members[at], 18)
  end
  return ids
end

-- Loads the slots of ids that must all be live and in one of the states. Returns nil and a refusal
-- that names the first that is not.
function slot.load(ids, states)
  if #ids == 0 then return {} end
  local records, found = redis.call('HMGET', keys.slots, unpack(ids)), {}
  for at = 1, #ids do
    if not records[at] then return nil, control.head('UNKNOWN', ids[at]) end
    found[at] = slot.parse(ids[at], records[at])
    if not string.find(' ' .. states .. ' ', ' ' .. found[at].state .. ' ', 1, true) then
      return nil, control.head('STATE', ids[at], found[at].state)
    end
  end
  return found
end

-- Loads the slots that a sorted set lists; a member without such a slot means a damaged keyspace.
function slot.load_listed(members, states)
  local found, refusal = slot.load(slot.ids(members), states)
  if refusal then return nil, control.head('CORRUPT', refusal[6]) end
  return found
end
