-- quarantine: take ready or claimed groups out of training, all or none; they wait for a person.
--
-- Why atomic: holder and payload are compared in the step that moves the group, so it is neither trained
-- meanwhile, nor taken for another group that has got its id; its step learns of the loss at once.
-- May be repeated: a group that is quarantined stays so. The ranks of a trainer come under its owner and epoch.
-- Keys: meta slots ready claimed quarantined ready_by_step claimed_by_step ready_by_order claimed_by_owner
--   batches acks dead steps owners events
-- Args: owner epoch reason group_ids fences
-- States: ready claimed quarantined -> quarantined
-- Returns: ids of the groups that were not quarantined before
-- Refusals: FENCED UNKNOWN STATE ATTEMPT MISMATCH CORRUPT
-- include: retire
-- include: owner
-- include: manifest
local refusal = control.open()
if refusal then return refusal end
refusal = owner.fenced()
if refusal then return refusal end
local named, unfit = slot.load(args.group_ids, 'ready claimed quarantined')
if not named then return unfit end
local held, corrupt = slot.load_listed(owner.held(keys.claimed_by_owner, args.epoch, 1025), 'claimed')
if not held then return corrupt end
local slots, taken, ids, remaining = {}, {}, {}, {}
for at, found in ipairs(named) do
  if (found.payload_fence and text.whole(found.payload_fence) or '') ~= args.fences[at] then
    return control.head('ATTEMPT', found.id, text.whole(found.attempt))
  end
  if found.state == 'claimed' and found.epoch ~= args.epoch then
    return control.head('MISMATCH', text.pack({ found.id }), '')
  end
  if found.state ~= 'quarantined' then
    slots[#slots + 1], ids[#ids + 1], taken[found.id] = found, found.id, true
  end
end
if #ids == 0 then return control.head('OK') end
for _, found in ipairs(held) do
  if not taken[found.id] then remaining[#remaining + 1] = found end
end

local fence = control.draw('next_fence', 1)
retire.leftovers(slots)
manifest.forget(slots, remaining)
listing.move(slots, function(found)
  found.state, found.epoch, found.fence, found.batch, found.written = 'quarantined', nil, fence, nil, nil
end)
steps.lose(slots)
control.close('quarantine', ids, args.owner, args.reason)
return control.head('OK', unpack(ids))
