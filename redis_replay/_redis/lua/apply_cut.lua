-- apply_cut: apply a mutation cut: admission, reservations and loader state, all or none.
--
-- Why atomic: the cursor, the reserved slots and the loader position move together, so a resumed run
-- neither skips nor repeats a prompt, and no reader sees one without the others.
-- Keys: meta slots prompts reserved ready claimed reserved_by_step reserved_by_owner tickets counters
--   sessions owners events admissions steps
-- Args: index kept seen_version loader_revision loader_state exhausted group_ids weights targets prompt_refs
--   replacements
-- States: none -> reserved
-- Returns: the fence of the reservations
-- Refusals: CONFLICT DUPLICATE FULL FULL_BYTES
-- include: session
-- include: admission
-- include: reservation
-- include: bytes
local refusal = session.open()
if refusal then return refusal end
local advances = args.index and args.index == control.cursor + 1
if advances and not admission.gate_open() then return control.head('CONFLICT', 'gate', text.whole(control.cursor)) end
if args.index and not advances then
  local holder = redis.call('HGET', keys.admissions, text.whole(args.index))
  local is_kept = args.kept == 1 and holder == text.whole(args.epoch) .. ' ' .. args.owner
  if not is_kept and admission.orphan() ~= args.index then
    return control.head('CONFLICT', 'cursor', text.whole(control.cursor))
  end
end
local revision = redis.call('HGET', keys.meta, 'loader_revision')
if args.loader_revision and tonumber(revision) ~= args.loader_revision then
  return control.head('CONFLICT', 'loader', revision)
end
local dispatches = args.index or #args.group_ids > 0
refusal = reservation.check() or (dispatches and bytes.check() or nil)
if refusal then return refusal end

if args.index then
  if advances then admission.advance() end
  admission.keep_open(args.index)
end
if args.loader_revision then
  control.set('loader_revision', text.whole(args.loader_revision + 1))
  control.set('loader_state', args.loader_state)
  control.set('exhausted', args.exhausted == 1 and '1' or '')
end
local fence = #args.group_ids > 0 and reservation.write(reservation.batch(args.index), args.targets, args.replacements)
if fence and args.index then redis.call('HDEL', keys.admissions, text.whole(args.index)) end
local answer = fence and text.whole(fence) or ''
if args.exhausted == 1 then return session.close('end_of_data', args.group_ids, answer) end
return session.close('cut', args.group_ids, answer)
