-- mark_written: note that the holder of claimed groups writes columns back to them.
--
-- Why atomic: the claim is checked and the column keys become known in one step, before any of them is
-- written, so a zombie writes nowhere and nothing is left behind. The ranks of a trainer come under its
-- owner and epoch.
-- May be repeated: the columns are kept under the number that the first call gave them.
-- Keys: meta slots owners events
-- Args: owner epoch group_ids
-- States: claimed -> claimed
-- Returns: each group's payload fence and the number its columns are kept under
-- Refusals: FENCED UNKNOWN STATE MISMATCH
-- include: owner
-- include: slot
local refusal = control.open()
if refusal then return refusal end
refusal = owner.fenced()
if refusal then return refusal end
local slots, unfit = slot.load(args.group_ids, 'claimed')
if not slots then return unfit end
local answer = {}
for _, found in ipairs(slots) do
  if found.epoch ~= args.epoch then return control.head('MISMATCH', text.pack({ found.id }), '') end
  found.written = found.written or found.fence
  answer[#answer + 1], answer[#answer + 2] = text.whole(found.payload_fence), text.whole(found.written)
end
redis.call('HSET', keys.slots, unpack(slot.items(slots)))
control.close('write', args.group_ids, args.owner)
return control.head('OK', unpack(answer))
