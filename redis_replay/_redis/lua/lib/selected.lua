-- selected: what sessions have selected for good and still read.
--
-- The groups have ended. Their records and rows stay until the session lets them go or ends, for there is no
-- claim that keeps them. One field a selection: epoch, then the id and the last record of each group.
-- Keys: selected dead
-- Refusals: TOO_MANY SELECTED
-- include: retire
local selected = {}

local MOST = 1024

-- The selections of a session, or of all, by number; of these numbers only where given. And how many groups.
function selected.of(epoch, numbers)
  local listed, wanted, found, count = redis.call('HGETALL', keys.selected), {}, {}, 0
  for _, number in ipairs(numbers or {}) do
    wanted[text.whole(number)] = true
  end
  for at = 1, #listed, 2 do
    local items = text.unpack(listed[at + 1])
    if (not epoch or items[1] == text.whole(epoch)) and (not numbers or wanted[listed[at]]) then
      found[listed[at]], count = items, count + (#items - 1) / 2
    end
  end
  return found, count
end

function selected.check_room(epoch, count)
  local _, held = selected.of(epoch)
  if held + count > MOST then return control.head('TOO_MANY', text.whole(held), text.whole(count), text.whole(MOST)) end
end

function selected.keep(number, epoch, items)
  redis.call('HSET', keys.selected, text.whole(number), text.pack({ text.whole(epoch), unpack(items) }))
end

-- Names the rows of selections for collection: those of the named groups, or of all.
function selected.let_go(selections, named)
  for number, items in pairs(selections) do
    local dead, left = {}, { items[1] }
    for at = 2, #items, 2 do
      if not named or named[items[at]] then
        retire.name(dead, retire.payload_of(record.parse(items[at], items[at + 1])))
      else
        left[#left + 1], left[#left + 2] = items[at], items[at + 1]
      end
    end
    if #dead > 0 then redis.call('ZADD', keys.dead, unpack(dead)) end
    redis.call('HDEL', keys.selected, number)
    if #left > 1 then redis.call('HSET', keys.selected, number, text.pack(left)) end
  end
end

-- The refusal of a checkpoint while other selections than these are being trained, or nil.
function selected.left(selections)
  for _, number in ipairs(redis.call('HKEYS', keys.selected)) do
    if not selections[number] then return control.head('SELECTED') end
  end
end
