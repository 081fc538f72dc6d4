-- text: whole numbers as text, and lists packed into one string.
--
-- tostring() keeps 14 digits only and cjson cannot carry every id, so both are written here.
local text = {}

local written = {}

-- Most numbers of a call repeat from slot to slot, so each is written once.
function text.whole(number)
  local known = written[number]
  if not known then
    known = string.format('%.0f', number)
    written[number] = known
  end
  return known
end

-- Each item as its length, a colon and its bytes: any id survives, whatever it contains.
function text.pack(items)
  local parts = {}
  for at = 1, #items do
    local item = items[at]
    parts[3 * at - 2], parts[3 * at - 1], parts[3 * at] = text.whole(#item), ':', item
  end
  return table.concat(parts)
end

-- Undoes `text.pack`; of a long list the first items may be enough.
function text.unpack(packed, most)
  local items, from = {}, 1
  while from <= #packed and #items ~= most do
    local colon = string.find(packed, ':', from, true)
    local last = colon + tonumber(string.sub(packed, from, colon - 1))
    items[#items + 1] = string.sub(packed, colon + 1, last)
    from = last + 1
  end
  return items
end

function text.words(line)
  local words = {}
  for word in string.gmatch(line, '%S+') do
    words[#words + 1] = word
  end
  return words
end
