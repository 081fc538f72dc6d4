-- swap: puts a checkpoint's copies in the place of the live keys.
--
-- Keys: meta slots prompts reserved ready claimed quarantined reserved_by_step ready_by_step claimed_by_step
--   ready_by_order reserved_by_owner claimed_by_owner tickets owners lost sessions admissions batches acks steps tally
--   counters ends dead pinned
-- Refusals: CHECKPOINT_SETTINGS
-- include: retire
local swap = {}

local SLICE = 500

local function in_slices(command, key, items)
  for at = 1, #items, 2 * SLICE do
    redis.call(command, key, unpack(items, at, math.min(at + 2 * SLICE - 1, #items)))
  end
end

-- The refusal that names a setting in which checkpoint and run differ, or nil.
function swap.unlike()
  local names = { 'group_size', 'groups_per_step', 'dataset', 'policy' }
  local live, kept = redis.call('HMGET', keys.meta, unpack(names)), redis.call('HMGET', saved[1].meta, unpack(names))
  for at, name in ipairs(names) do
    local differs = live[at] and kept[at] and live[at] ~= '' and kept[at] ~= '' and live[at] ~= kept[at]
    if differs and (name ~= 'policy' or live[at] == 'in_order' or kept[at] == 'in_order') then
      return control.head('CHECKPOINT_SETTINGS', name, kept[at], live[at])
    end
  end
end

-- Names what live groups refer to and the restored ones do not; what those refer to is dead no more. A live
-- record that is not readable names nothing: a restore is what mends such a run.
function swap.bury_live(slots)
  local kept, revived, dead, stored = {}, {}, {}, redis.call('HGETALL', keys.slots)
  for _, found in ipairs(slots) do
    local entry = found.payload_fence and retire.payload_of(found)
    if entry then kept[entry], revived[#revived + 1] = true, entry end
  end
  for at = 1, #stored, 2 do
    local found = record.parse(stored[at], stored[at + 1])
    local entry = found.fence and retire.payload_of(found)
    if entry and not kept[entry] then retire.name(dead, entry) end
    if found.payload_fence then retire.name_columns(found, dead) end
  end
  in_slices('ZADD', keys.dead, dead)
  in_slices('ZREM', keys.dead, revived)
  in_slices('ZREM', keys.pinned, revived)
end

function swap.exchange()
  redis.call('UNLINK', keys.slots, keys.prompts, keys.reserved, keys.ready, keys.claimed, keys.quarantined,
    keys.reserved_by_step, keys.ready_by_step, keys.claimed_by_step, keys.ready_by_order, keys.reserved_by_owner,
    keys.claimed_by_owner, keys.tickets, keys.owners, keys.lost, keys.sessions, keys.admissions, keys.batches,
    keys.acks, keys.steps, keys.tally, keys.counters, keys.ends)
  for copy, live in pairs({ [saved[1].prompts] = keys.prompts, [saved[1].admissions] = keys.admissions,
    [saved[1].steps] = keys.steps, [saved[1].tally] = keys.tally, [saved[1].counters] = keys.counters,
    [saved[1].ends] = keys.ends }) do
    redis.call('COPY', copy, live)
  end
end
