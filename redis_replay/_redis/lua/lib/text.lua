-- text: whole numbers as text, and lists packed into one string.
--
-- tostring() keeps 14 digits only and cjson cannot carry every id, so both are written here.
local text = {}

function text.whole(number)
  return string.format('%.0f', number)
end

-- Each item as its length, a colon and its bytes: any id survives, whatever it contains.
function text.pack(items)
  local parts = {}
  for at = 1, #items do
    parts[at] = #items[at] .. ':' .. items[at]
  end
  return table.concat(parts)
end

function text.unpack(packed)
  local items, from = {}, 1
  while from <= #packed do
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
