-- packed: records of live groups as they are stored, for a claim, which reads and writes many and changes little.
--
-- Keys: slots
-- Refusals: UNKNOWN STATE CORRUPT
-- include: control
-- include: record
local packed = {}

local READY = '^ready (%d+) %d+ (%d+) (%d+) ([%d-]+) (%d+) %S+ (%d+) %S+ (%S+ %S+ %S+ %S+ %S+)$'

-- Loads the records of slots in one state. Returns nil and a refusal, as `slot.load` does.
function packed.load(ids, state)
  if #ids == 0 then return {} end
  local records, unfit, prefix = redis.call('HMGET', keys.slots, unpack(ids)), nil, state .. ' '
  for at = 1, #ids do
    if not records[at] then return nil, control.head('UNKNOWN', ids[at]) end
    if not unfit and string.sub(records[at], 1, #prefix) ~= prefix then unfit = at end
  end
  if unfit then return nil, control.head('STATE', ids[unfit], string.match(records[unfit], '^%S*')) end
  return records
end

-- The same of what a sorted set lists, as `slot.load_listed` does.
function packed.load_listed(ids, state)
  local records, refusal = packed.load(ids, state)
  if refusal then return nil, control.head('CORRUPT', refusal[6]) end
  return records
end

-- The record of a ready group as its claim leaves it, then its start, finish, target and payload fence as they are
-- written; nil if it is no such record.
function packed.claimed(line, fence, epoch)
  local order, start, finish, target, payload_fence, attempt, rest = string.match(line, READY)
  if not order then return nil end
  return table.concat({ 'claimed', order, fence, start, finish, target, payload_fence, epoch, attempt, fence, rest },
    ' '), start, finish, target, payload_fence
end

function packed.members(ids, records)
  local members = {}
  for at, id in ipairs(ids) do
    local order = string.match(records[at], '^%S+ (%S+)')
    members[at] = record.member({ id = id, order = tonumber(order) })
  end
  return members
end
