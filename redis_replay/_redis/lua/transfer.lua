-- transfer: hand all claims of a session to another live session, under a new claim number.
--
-- Why atomic: at no instant are the groups nobody's or two sessions'. Written columns go along.
-- Keys: meta slots claimed claimed_by_step claimed_by_owner batches acks sessions owners events
-- Args: receiver step
-- States: claimed -> claimed
-- Returns: the new claim number, then the number of groups; nothing when there was no claim
-- Refusals: RECEIVER TOO_MANY CORRUPT
-- include: session
-- include: owner
-- include: batch
local refusal = session.open()
if refusal then return refusal end
local receiver = owner.read(args.receiver)
if not receiver then return control.head('RECEIVER', args.receiver) end
local slots, corrupt = slot.load_listed(owner.held(keys.claimed_by_owner, args.epoch, 1025), 'claimed')
if not slots then return corrupt end
if #slots == 0 then return control.head('OK') end
refusal = batch.check_room(receiver.epoch, receiver.epoch ~= args.epoch and #slots or 0)
if refusal then return refusal end
manifest.forget(slots, {})
local number = batch.hand_over(slots, receiver, args.step)
local ids = {}
for at, found in ipairs(slots) do
  ids[at] = found.id
end
return session.close('transfer', ids, text.whole(number), text.whole(#ids))
