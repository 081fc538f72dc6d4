-- mark_written: note that a session writes columns back to its claimed groups.
--
-- Why atomic: the claim is checked and the column keys become known in one step, before any of them is
-- written, so a zombie writes nowhere and nothing is left behind.
-- Keys: meta slots sessions owners events
-- Args: group_ids
-- States: claimed -> claimed
-- Returns: each group's payload fence and the number its columns are kept under
-- Refusals: UNKNOWN STATE MISMATCH
-- include: session
-- include: slot
local refusal = session.open()
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
return session.close('write', args.group_ids, unpack(answer))
