-- batch: gives ready groups to the calling session as one training claim, and ends claims.
--
-- A claim's number is its fence, drawn once for all its groups. The manifest in `batches` lets every
-- rank of a job read the same groups in the same order.
-- Keys: slots ready claimed ready_by_step claimed_by_step ready_by_order claimed_by_owner batches acks counters
-- Refusals: TOO_MANY
-- include: index
-- include: owner
local batch = {}

local MOST = 1024

function batch.check_room(count)
  local held = redis.call('ZCOUNT', keys.claimed_by_owner, text.whole(args.epoch), text.whole(args.epoch))
  if held + count > MOST then return control.head('TOO_MANY', text.whole(held), text.whole(count), text.whole(MOST)) end
end

-- Moves slots to a holder under a new claim number. Returns the number and the reply's group items.
function batch.give(slots, holder, step)
  local number, items = control.draw('next_fence', 1), {}
  local manifest = { text.whole(holder.epoch), text.whole(step), text.whole(holder.world) }
  index.move(slots, function(found)
    found.state, found.fence, found.batch, found.epoch = 'claimed', number, number, holder.epoch
  end)
  for at, found in ipairs(slots) do
    items[2 * at - 1], items[2 * at] = found.id, slot.format(found)
    manifest[at + 3] = text.whole(found.payload_fence) .. ':' .. found.id
  end
  redis.call('HSET', keys.batches, text.whole(number), text.pack(manifest))
  return number, items
end

-- The ranks that have not acknowledged a claim; a claim of a single rank needs no acknowledgement.
function batch.absent(number)
  local kept, absent = redis.call('HGET', keys.batches, text.whole(number)), {}
  local world = kept and tonumber(text.unpack(kept)[3]) or 1
  local acks = redis.call('HGET', keys.acks, text.whole(number)) or ' '
  for rank = 0, world > 1 and world - 1 or -1 do
    if not string.find(acks, ' ' .. text.whole(rank) .. ' ', 1, true) then absent[#absent + 1] = text.whole(rank) end
  end
  return absent
end

-- The distinct claim numbers of slots, in ascending order of first appearance.
function batch.numbers(slots)
  local numbers, seen = {}, {}
  for _, found in ipairs(slots) do
    if found.batch and not seen[found.batch] then
      seen[found.batch], numbers[#numbers + 1] = true, found.batch
    end
  end
  return numbers
end

-- Forgets the manifests of claims of which no group is left but `slots`.
function batch.forget(slots, remaining)
  local kept = {}
  for _, found in ipairs(remaining) do
    kept[found.batch] = true
  end
  for _, number in ipairs(batch.numbers(slots)) do
    if not kept[number] then
      redis.call('HDEL', keys.batches, text.whole(number))
      redis.call('HDEL', keys.acks, text.whole(number))
    end
  end
end
