-- checkpoint: the run's control plane under a name, and the record that says what it holds.
--
-- Payload and group records are not copied: `condemn` keeps what the copied slots refer to. The copies lie under
-- an id, so that a name may be given anew while the older copies are dropped, under "~<id>".
-- Keys: meta slots prompts reserved ready claimed quarantined admissions steps tally counters ends checkpoints
-- Args: saved_ids created_ms extra
-- Refusals: CHECKPOINT_EXISTS CHECKPOINTS_FULL
-- include: control
local checkpoint = {}

local MOST = 128
local FIELDS = { 'state', 'id', 'seq', 'store_epoch', 'lineage', 'schema', 'trainer_version', 'dispatch_index',
  'reserved', 'ready', 'claimed', 'quarantined', 'payload_bytes', 'created_ms', 'pinned', 'digest', 'extra' }

function checkpoint.read(name)
  local packed = redis.call('HGET', keys.checkpoints, name)
  if not packed then return nil end
  local found = {}
  for at, item in ipairs(text.unpack(packed)) do
    found[FIELDS[at]] = item
  end
  return found
end

function checkpoint.write(name, found)
  local items = {}
  for at, field in ipairs(FIELDS) do
    items[at] = found[field]
  end
  redis.call('HSET', keys.checkpoints, name, text.pack(items))
end

-- The refusal where the name cannot be given, or nil. An unpinned one from before a restore gives it away.
function checkpoint.taken(name, replace)
  local found = checkpoint.read(name)
  if found and replace == 0 and (found.pinned == '1' or found.store_epoch == text.whole(args.store_epoch)) then
    return control.head('CHECKPOINT_EXISTS', name)
  end
  if redis.call('HLEN', keys.checkpoints) >= MOST then return control.head('CHECKPOINTS_FULL', text.whole(MOST)) end
end

-- Copies what the script has written so far, with the control record as `control.close` will leave it.
function checkpoint.save(name, pinned)
  local older, copies = checkpoint.read(name), saved[1]
  if older then checkpoint.write('~' .. older.id, older) end
  for source, copy in pairs({ [keys.meta] = copies.meta, [keys.slots] = copies.slots, [keys.prompts] = copies.prompts,
    [keys.admissions] = copies.admissions, [keys.steps] = copies.steps, [keys.tally] = copies.tally,
    [keys.counters] = copies.counters, [keys.ends] = copies.ends }) do
    redis.call('COPY', source, copy)
  end
  redis.call('HSET', copies.meta, 'seq', control.next_seq(), unpack(control.changes))
  checkpoint.write(name, { state = 'complete', id = args.saved_ids[1], seq = control.next_seq(),
    store_epoch = text.whole(args.store_epoch), lineage = args.lineage, schema = text.whole(args.schema),
    dispatch_index = text.whole(control.cursor), trainer_version = text.whole(control.version),
    reserved = text.whole(redis.call('ZCARD', keys.reserved)), ready = text.whole(redis.call('ZCARD', keys.ready)),
    claimed = text.whole(redis.call('ZCARD', keys.claimed)), created_ms = text.whole(args.created_ms),
    quarantined = text.whole(redis.call('ZCARD', keys.quarantined)), pinned = text.whole(pinned), digest = '',
    payload_bytes = redis.call('HGET', keys.counters, 'payload_bytes') or '0', extra = args.extra })
end
