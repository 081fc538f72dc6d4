-- abort: end a reserved group whose rollout will not finish; its place is free at once.
--
-- Why atomic: the reservation's fence is compared in the step that ends it, so a group that was
-- committed or redispatched meanwhile is left alone.
-- Keys: meta slots prompts reserved reserved_by_step reserved_by_owner tickets counters ends dead steps sessions
--   owners events
-- Args: group_id fence reason
-- States: reserved -> aborted
-- Returns: nothing
-- Refusals: UNKNOWN STATE ATTEMPT
-- include: session
-- include: retire
local refusal = session.open()
if refusal then return refusal end
local slots, unfit = slot.load({ args.group_id }, 'reserved')
if not slots then return unfit end
if slots[1].fence ~= args.fence then
  return control.head('ATTEMPT', args.group_id, text.whole(slots[1].attempt))
end
retire.groups(slots, 'aborted', args.reason)
return session.close('abort', { args.group_id })
