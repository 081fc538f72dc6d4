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

-- The lowest index whose owner is gone, or nil.
function admission.orphan()
  local lowest
  local listed = redis.call('HGETALL', keys.admissions)
  for at = 1, #listed, 2 do
    local number = tonumber(listed[at])
    if (not lowest or number < lowest) and not holder_lives(listed[at + 1]) then lowest = number end
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
  redis.call('HSET', keys.admissions, text.whole(number), text.whole(args.epoch) .. ' ' .. args.owner)
end

-- A reservation answers an open admission of its owner: the one of its target step; without a step the
-- oldest, unless its cut has admitted an index of its own.
function admission.answer(targets, admitted)
  local listed = redis.call('HGETALL', keys.admissions)
  local own, oldest = text.whole(args.epoch) .. ' ' .. args.owner, nil
  for at = 1, #listed, 2 do
    if listed[at + 1] == own then
      local number = tonumber(listed[at])
      if targets[listed[at]] then redis.call('HDEL', keys.admissions, listed[at]) end
      if not oldest or number < oldest then oldest = number end
    end
  end
  if admitted or not targets[''] or not oldest then return nil end
  redis.call('HDEL', keys.admissions, text.whole(oldest))
  return oldest
end
