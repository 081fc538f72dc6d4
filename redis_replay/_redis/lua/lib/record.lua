-- record: the packed record of a live group, and its member in the sorted sets.
--
-- Record: fifteen words, "-" for none. Member: "<order>:<group id>" with an order of sixteen digits,
-- so equal scores are in buffer order.
-- include: text
local record = {}

local FIELDS = { 'state', 'order', 'fence', 'start', 'finish', 'target', 'payload_fence', 'epoch', 'attempt',
  'batch', 'requeues', 'written', 'bytes', 'dispatch', 'replacement' }

function record.parse(group_id, packed)
  local words, found = text.words(packed), { id = group_id }
  for at = 2, #FIELDS do
    found[FIELDS[at]] = tonumber(words[at])
  end
  found.state = words[1]
  return found
end

function record.format(found)
  local words = { found.state }
  for at = 2, #FIELDS do
    local value = found[FIELDS[at]]
    words[at] = value and text.whole(value) or '-'
  end
  return table.concat(words, ' ')
end

function record.member(found)
  return string.format('%016.0f:', found.order) .. found.id
end

function record.id_of(member)
  return string.sub(member, 18)
end
