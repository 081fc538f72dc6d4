-- reserve: give places in the buffer to new prompt groups, all or none.
--
-- Why atomic: the places are counted and taken in one step.
-- Keys: meta slots prompts reserved ready claimed reserved_by_step reserved_by_owner tickets counters
--   sessions owners events admissions steps
-- Args: group_ids weights targets prompt_refs replacements
-- States: none -> reserved
-- Returns: the fence they share
-- Refusals: DUPLICATE FULL FULL_BYTES
-- include: session
-- include: reservation
-- include: bytes
local refusal = session.open()
if refusal then return refusal end
refusal = reservation.check() or bytes.check()
if refusal then return refusal end
local fence = reservation.write(reservation.batch(nil), args.targets, args.replacements)
return session.close('reserve', args.group_ids, text.whole(fence))
