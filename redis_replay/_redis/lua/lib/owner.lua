-- owner: the record of an attached session and the groups it holds.
--
-- Record: "<epoch> <heartbeat> <role> <world> <lease ms> <host>". Epochs come from the run-wide fence
-- counter, so no session of any name ever has the epoch of another.
-- Keys: owners
-- include: text
local owner = {}

function owner.read(name)
  local record = redis.call('HGET', keys.owners, name)
  if not record then return nil end
  local words = text.words(record)
  return { epoch = tonumber(words[1]), heartbeat = tonumber(words[2]), role = words[3], world = tonumber(words[4]),
    lease = words[5], host = words[6] }
end

function owner.write(name, found)
  redis.call('HSET', keys.owners, name, table.concat({ text.whole(found.epoch), text.whole(found.heartbeat),
    found.role, text.whole(found.world), found.lease, found.host }, ' '))
end

function owner.held(key, epoch, limit)
  return redis.call('ZRANGEBYSCORE', key, text.whole(epoch), text.whole(epoch), 'LIMIT', 0, limit)
end
