-- batch: gives groups to a session as one training claim.
--
-- A claim's number is its fence, drawn once for all its groups.
-- Keys: claimed_by_owner groups
-- Refusals: TOO_MANY
-- include: listing
-- include: manifest
local batch = {}

local MOST = 1024

function batch.check_room(epoch, count)
  local held = redis.call('ZCOUNT', keys.claimed_by_owner, text.whole(epoch), text.whole(epoch))
  if held + count > MOST then return control.head('TOO_MANY', text.whole(held), text.whole(count), text.whole(MOST)) end
end

-- Moves slots to a holder under a new claim number. Returns the number and the reply's group items.
function batch.give(slots, holder, step)
  local number = control.draw('next_fence', 1)
  local items = listing.move(slots, function(found)
    found.state, found.fence, found.batch, found.epoch = 'claimed', number, number, holder.epoch
  end)
  manifest.write(number, holder, step, slots)
  return number, items
end

-- Appends the groups' immutable records to a claim's answer. They are not kept with it: a repetition of the call
-- reads them for itself.
function batch.describe(answer, slots)
  local fields = {}
  for at, found in ipairs(slots) do
    fields[at] = text.whole(found.payload_fence) .. ':' .. found.id
  end
  local records = redis.call('HMGET', keys.groups, unpack(fields))
  for at = 1, #fields do
    answer[#answer + 1] = records[at] or ''
  end
  return answer
end
