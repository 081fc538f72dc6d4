-- batch: gives groups to a session as one training claim.
--
-- A claim's number is its fence, drawn once for all its groups.
-- Keys: claimed_by_owner
-- Refusals: TOO_MANY
-- include: listing
-- include: manifest
local batch = {}

local MOST = 1024

function batch.check_room(epoch, count)
  local held = redis.call('ZCOUNT', keys.claimed_by_owner, text.whole(epoch), text.whole(epoch))
  if held + count > MOST then return control.head('TOO_MANY', text.whole(held), text.whole(count), text.whole(MOST)) end
end

-- Hands claimed groups to another holder under a new claim number. Returns the number.
function batch.hand_over(slots, holder, step)
  local number = control.draw('next_fence', 1)
  local entries = {}
  for at, found in ipairs(slots) do
    entries[at] = text.whole(found.payload_fence) .. ':' .. found.id
  end
  listing.move(slots, function(found)
    found.fence, found.batch, found.epoch = number, number, holder.epoch
  end)
  manifest.write(text.whole(number), holder, step, entries)
  return number
end
