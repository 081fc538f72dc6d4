-- admission: the gate, the dispatch cursor, and admitted batches that have no reservation yet.
--
-- An advance without reservations is kept with its owner in `admissions`. When that owner is gone the
-- next admitter gets its index first, so no index is ever skipped (D19).
-- Keys: meta admissions
-- Args: seen_version
-- include: control
-- include: owner
local admission = {}

function admission.gate_open()
  return control.cursor < math.max(control.version, args.seen_version) + (control.window or 0)
end

local function holder_lives(record)
  local space = string.find(record, ' ', 1, true)
  local found = owner.read(string.sub(record, space + 1))
  return found and found.epoch == tonumber(string.sub(record, 1, space - 1))
end

-- Indexes below this one are nobody's any more: `in_order` never trains a group for a passed step.
local function first()
  return redis.call('HGET', keys.meta, 'policy') == 'in_order' and control.version or 0
end

-- The lowest index whose owner is gone, or nil.
function admission.orphan()
  local lowest, from = nil, first()
  local listed = redis.call('HGETALL', keys.admissions)
  for at = 1, #listed, 2 do
    local number = tonumber(listed[at])
    if number >= from and (not lowest or number < lowest) and not holder_lives(listed[at + 1]) then lowest = number end
  end
  return lowest
end

function admission.advance()
  control.cursor = control.cursor + 1
  control.set('dispatch_index', text.whole(control.cursor))
  if not redis.call('HGET', keys.meta, 'admitted') then control.set('admitted', text.whole(control.cursor)) end
  return control.cursor
end

function admission.keep_open(number)
  for _, kept in ipairs(redis.call('HKEYS', keys.admissions)) do
    if tonumber(kept) < first() then redis.call('HDEL', keys.admissions, kept) end
  end
  redis.call('HSET', keys.admissions, text.whole(number), text.whole(args.epoch) .. ' ' .. args.owner)
end
