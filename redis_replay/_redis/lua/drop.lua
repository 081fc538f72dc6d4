-- drop: end a reserved group that will not be trained and, where asked, give its place to a replacement.
--
-- Why atomic: the group ends, its rewards are counted once and its step learns of the loss or gets a
-- replacement in one step, so a trainer never waits for a group that nobody generates. The budget of
-- replacements is counted along the chain of one place.
-- Keys: meta slots prompts reserved reserved_by_step reserved_by_owner tickets counters ends dead
--   steps tally sessions owners events
-- Args: group_id fence ending reason samples reward_sum zero_variance budget group_ids weights prompt_refs
-- States: none -> reserved; reserved -> aborted filtered
-- Returns: fence, number and target step of the replacement; nothing when there is none
-- Refusals: UNKNOWN STATE ATTEMPT DUPLICATE TALLY
-- include: session
-- include: retire
-- include: reservation
-- include: tally
local refusal = session.open()
if refusal then return refusal end
local slots, unfit = slot.load({ args.group_id }, 'reserved')
if not slots then return unfit end
local found = slots[1]
if found.fence ~= args.fence or found.epoch ~= args.epoch then
  return control.head('ATTEMPT', args.group_id, text.whole(found.attempt))
end
local replaced = #args.group_ids > 0 and found.replacement < args.budget
if replaced and redis.call('HEXISTS', keys.slots, args.group_ids[1]) == 1 then
  return control.head('DUPLICATE', args.group_ids[1])
end
refusal = tally.check(found)
if refusal then return refusal end

retire.groups(slots, args.ending, args.reason)
tally.record(found.target, found.replacement)
if not replaced then return session.close('drop', { args.group_id }) end
local target = found.target and text.whole(found.target) or ''
local fence = reservation.write(found.dispatch, { target }, { found.replacement + 1 })
return session.close('drop', { args.group_id, args.group_ids[1] }, text.whole(fence),
  text.whole(found.replacement + 1), target)
