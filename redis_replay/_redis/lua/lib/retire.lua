-- retire: ends live groups: off every set, counted by end and reason, their keys named for collection.
--
-- Payload keys may lie on other servers, so they are only entered in `dead` here; the collector frees
-- them afterwards. Nothing that a writer may have left behind is unknown: a reserved slot's current
-- fence names what its writer may have written.
-- Keys: slots prompts counters ends dead
-- include: listing
-- include: steps
local retire = {}

function retire.name(dead, entry)
  retire.seq = retire.seq or control.next_seq()
  dead[#dead + 1], dead[#dead + 2] = retire.seq, entry
end

function retire.payload_of(found)
  return text.whole(found.payload_fence or found.fence) .. ':' .. found.id
end

function retire.name_columns(found, dead)
  if found.written then
    retire.name(dead, 'w' .. text.whole(found.written) .. '.' .. text.whole(found.payload_fence) .. ':' .. found.id)
  end
end

local function enter(dead)
  if #dead > 0 then redis.call('ZADD', keys.dead, unpack(dead)) end
end

-- Names what a lost attempt or a lost claim may have written; the slots themselves live on.
function retire.leftovers(slots)
  local dead = {}
  for _, found in ipairs(slots) do
    if found.state == 'reserved' then retire.name(dead, retire.payload_of(found)) end
    retire.name_columns(found, dead)
  end
  enter(dead)
end

-- Rows that are still `readable` are not named here, but when they are let go.
function retire.groups(slots, ending, reason, readable)
  if #slots == 0 then return end
  local ids, dead, lost, bytes = {}, {}, {}, 0
  for at, found in ipairs(slots) do
    ids[at] = found.id
    retire.name(dead, retire.payload_of(found))
    retire.name_columns(found, dead)
    bytes = bytes + (found.bytes or 0)
    if ending ~= 'trained' and found.state ~= 'quarantined' then lost[#lost + 1] = found end
  end
  redis.call('HDEL', keys.slots, unpack(ids))
  listing.remove(slots)
  redis.call('HDEL', keys.prompts, unpack(ids))
  if not readable then enter(dead) end
  steps.lose(lost)
  redis.call('HINCRBY', keys.counters, ending, #slots)
  redis.call('HINCRBY', keys.counters, 'payload_bytes', text.whole(0 - bytes))
  redis.call('HINCRBY', keys.ends, ending .. ':' .. reason, #slots)
end
