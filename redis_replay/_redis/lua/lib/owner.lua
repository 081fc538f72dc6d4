-- owner: the record of an attached session and the groups it holds.
--
-- Record: "<epoch> <heartbeat> <role> <world> <lease ms> <host>". Epochs come from the run-wide fence
-- counter, so no session of any name ever has the epoch of another.
-- Keys: owners
-- Refusals: FENCED
-- include: control
local owner = {}

local function parse(name, record)
  local words = text.words(record)
  return { name = name, epoch = tonumber(words[1]), heartbeat = tonumber(words[2]), role = words[3],
    world = tonumber(words[4]), lease = words[5], host = words[6] }
end

function owner.read(name)
  local record = redis.call('HGET', keys.owners, name)
  return record and parse(name, record)
end

-- All attached sessions, in the order of their epochs.
function owner.all()
  local listed, found = redis.call('HGETALL', keys.owners), {}
  for at = 1, #listed, 2 do
    found[#found + 1] = parse(listed[at], listed[at + 1])
  end
  table.sort(found, function(one, other) return one.epoch < other.epoch end)
  return found
end

-- The refusal of a call by a session that has ended, or nil.
function owner.fenced()
  local holder = owner.read(args.owner)
  if not holder or holder.epoch ~= args.epoch then
    return control.head('FENCED', holder and text.whole(holder.epoch) or '')
  end
end

function owner.write(name, found)
  redis.call('HSET', keys.owners, name, table.concat({ text.whole(found.epoch), text.whole(found.heartbeat),
    found.role, text.whole(found.world), found.lease, found.host }, ' '))
end

function owner.held(key, epoch, limit)
  return redis.call('ZRANGEBYSCORE', key, text.whole(epoch), text.whole(epoch), 'LIMIT', 0, limit)
end
