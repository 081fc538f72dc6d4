-- bytes: the limit of stored payload. It closes reserving and admitting, never a commit.
--
-- Keys: meta counters
-- Refusals: FULL_BYTES
-- include: control
local bytes = {}

function bytes.check()
  local limit = redis.call('HGET', keys.meta, 'max_payload_bytes')
  local stored = redis.call('HGET', keys.counters, 'payload_bytes') or '0'
  if limit and limit ~= '' and tonumber(stored) >= tonumber(limit) then
    return control.head('FULL_BYTES', limit, stored)
  end
end
