-- manifest: the groups of a claim in their order, and which ranks of its job have finished with them.
--
-- Every rank reads the same groups in the same order. Manifest: epoch, step and world of the claim, then
-- "<payload fence>:<group id>" of each group. Acknowledgements: " <rank> <rank> ".
-- Keys: batches acks
-- include: text
local manifest = {}

function manifest.write(number, holder, step, entries)
  local items = { text.whole(holder.epoch), text.whole(step), text.whole(holder.world), unpack(entries) }
  redis.call('HSET', keys.batches, number, text.pack(items))
end

-- The ranks that have not acknowledged a claim; a claim of a single rank needs no acknowledgement.
function manifest.absent(number)
  local kept, absent = redis.call('HGET', keys.batches, text.whole(number)), {}
  local world = kept and tonumber(text.unpack(kept, 3)[3]) or 1
  local acks = redis.call('HGET', keys.acks, text.whole(number)) or ' '
  for rank = 0, world > 1 and world - 1 or -1 do
    if not string.find(acks, ' ' .. text.whole(rank) .. ' ', 1, true) then absent[#absent + 1] = text.whole(rank) end
  end
  return absent
end

-- The distinct claim numbers of slots, in order of first appearance.
function manifest.numbers(slots)
  local numbers, seen = {}, {}
  for _, found in ipairs(slots) do
    if found.batch and not seen[found.batch] then
      seen[found.batch], numbers[#numbers + 1] = true, found.batch
    end
  end
  return numbers
end

-- Forgets the manifests of claims of which no group is left but `slots`.
function manifest.forget(slots, remaining)
  local kept = {}
  for _, found in ipairs(remaining) do
    kept[found.batch] = true
  end
  for _, number in ipairs(manifest.numbers(slots)) do
    if not kept[number] then
      redis.call('HDEL', keys.batches, text.whole(number))
      redis.call('HDEL', keys.acks, text.whole(number))
    end
  end
end
