-- create_checkpoint: keep the run's control plane under a name.
--
-- Why atomic: slots, cursor, loader position, tallies and ledger are those of one instant. Payload is not
-- touched: it stays where it is for as long as the checkpoint refers to it.
-- May be repeated: the same id gives the same checkpoint.
-- Keys: meta slots prompts reserved ready claimed quarantined admissions steps tally counters ends checkpoints selected
--   events
-- Args: name step replace pinned created_ms extra saved_ids
-- Returns: the checkpoint's record
-- Refusals: STEP CHECKPOINT_EXISTS CHECKPOINTS_FULL SELECTED
-- include: checkpoint
-- include: selected
local refusal = control.open()
if refusal then return refusal end
local kept = checkpoint.read(args.name)
if not kept or kept.id ~= args.saved_ids[1] then
  if args.step and args.step ~= control.version then return control.head('STEP', text.whole(args.step)) end
  refusal = checkpoint.taken(args.name, args.replace) or selected.left({})
  if refusal then return refusal end
  checkpoint.save(args.name, args.pinned)
  control.close('checkpoint', {}, '')
end
return control.head('OK', redis.call('HGET', keys.checkpoints, args.name))
