-- begin_import: register a checkpoint whose copies and payload are about to be written from a file.
--
-- Why atomic: the name is taken and the fences of its groups are drawn in one step, so that no payload of the
-- file is ever taken for one of the run's own. Until it is complete it is never restored, and can be dropped.
-- May be repeated: a repetition draws other fences, and the first ones are nobody's.
-- Keys: meta checkpoints events
-- Args: name fences origin step cursor payload_bytes created_ms extra counts saved_ids
-- Returns: the first fence, the checkpoint's record
-- Refusals: CHECKPOINT_EXISTS CHECKPOINTS_FULL
-- include: checkpoint
local refusal = control.open()
if refusal then return refusal end
local id, found = args.saved_ids[1], checkpoint.read(args.name)
local is_repeated = found and found.id == id
refusal = not is_repeated and checkpoint.taken(args.name, 0)
if refusal then return refusal end
local first = control.draw('next_fence', args.fences)
if found and not is_repeated then checkpoint.write('~' .. found.id, found) end
checkpoint.write(args.name, { state = 'building', id = id, seq = is_repeated and found.seq or control.next_seq(),
  store_epoch = text.whole(args.store_epoch), lineage = args.origin, schema = text.whole(args.schema),
  trainer_version = text.whole(args.step), dispatch_index = text.whole(args.cursor),
  reserved = text.whole(args.counts[1]), ready = text.whole(args.counts[2]), claimed = text.whole(args.counts[3]),
  quarantined = text.whole(args.counts[4]), payload_bytes = text.whole(args.payload_bytes),
  created_ms = text.whole(args.created_ms), pinned = '0', digest = '', extra = args.extra })
control.close('import', {}, '')
return control.head('OK', text.whole(first), redis.call('HGET', keys.checkpoints, args.name))
