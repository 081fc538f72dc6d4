-- mark_checkpoint: note a checkpoint's digest, that it is whole, or whether retention keeps it.
--
-- Why atomic: the record is read and written in one step, and only while it is of the id that was seen.
-- May be repeated.
-- Keys: meta checkpoints
-- Args: name pinned state digest saved_ids
-- Returns: the checkpoint's record
-- Refusals: NO_CHECKPOINT
-- include: checkpoint
local refusal = control.open()
if refusal then return refusal end
local found = checkpoint.read(args.name)
if not found or found.id ~= args.saved_ids[1] then return control.head('NO_CHECKPOINT', args.name) end
if args.pinned then found.pinned = text.whole(args.pinned) end
if args.state ~= '' then found.state = args.state end
if args.digest ~= '' then found.digest = args.digest end
checkpoint.write(args.name, found)
return control.head('OK', redis.call('HGET', keys.checkpoints, args.name))
