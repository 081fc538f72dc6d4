-- inventory: what live and restored groups have in common, and the payload that only one of them refers to.
--
-- Keys: slots dead pinned
-- include: retire
local inventory = {}

local SLICE = 500

local function in_slices(command, key, items)
  for at = 1, #items, 2 * SLICE do
    redis.call(command, key, unpack(items, at, math.min(at + 2 * SLICE - 1, #items)))
  end
end

-- Compares the live groups with the records that come back as they are. Returns which of these live as they are,
-- with their number, and the records of all other live groups, with theirs.
function inventory.compare(records)
  local stored, staying, stay, leaving, leave = redis.call('HGETALL', keys.slots), {}, 0, {}, 0
  for at = 1, #stored, 2 do
    local id, packed = stored[at], stored[at + 1]
    if records[id] == packed then
      staying[id], stay = true, stay + 1
    else
      leaving[id], leave = packed, leave + 1
    end
  end
  return staying, stay, leaving, leave
end

-- Names what live groups refer to and the restored ones do not; what those refer to is dead no more. A live
-- record that is not readable names nothing: a restore is what mends such a run.
function inventory.bury_live(plan, staying, leaving)
  local kept, revived, dead = {}, {}, {}
  local function revive_entry(entry)
    kept[entry], revived[#revived + 1] = true, entry
  end
  for id, packed in pairs(plan.records) do
    if not staying[id] then
      local _, _, _, fence = record.ready(packed)
      revive_entry(fence .. ':' .. id)
    end
  end
  for _, found in ipairs(plan.slots) do
    if found.payload_fence then revive_entry(retire.payload_of(found)) end
  end
  for id, packed in pairs(leaving) do
    local _, _, _, fence = record.ready(packed)
    local entry = fence and fence .. ':' .. id
    if not fence then
      local found = record.parse(id, packed)
      entry = found.fence and retire.payload_of(found)
      if found.payload_fence then retire.name_columns(found, dead) end
    end
    if entry and not kept[entry] then retire.name(dead, entry) end
  end
  in_slices('ZADD', keys.dead, dead)
  in_slices('ZREM', keys.dead, revived)
  in_slices('ZREM', keys.pinned, revived)
end
