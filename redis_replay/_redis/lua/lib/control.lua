-- control: the run's control record, checked before anything else, and the head of every reply.
--
-- Every declared key is read by a command of its type first: a wrong type raises here, while nothing
-- is written, because a script error never rolls back what came before it.
-- Keys: meta events
-- Refusals: MISSING SCHEMA LINEAGE STALE_STORE REGRESSED
-- include: text
local control = { changes = {} }

local COUNT = { meta = 'HLEN', slots = 'HLEN', prompts = 'HLEN', groups = 'HLEN', owners = 'HLEN', lost = 'HLEN',
  sessions = 'HLEN', admissions = 'HLEN', batches = 'HLEN', acks = 'HLEN', steps = 'HLEN', tally = 'HLEN',
  counters = 'HLEN', ends = 'HLEN', checkpoints = 'HLEN', selected = 'HLEN', events = 'XLEN' }

function control.head(code, ...)
  return { code, control.seq or '', control.cursor and text.whole(control.cursor) or '',
    control.version and text.whole(control.version) or '', control.window and text.whole(control.window) or '', ... }
end

function control.open()
  for noun, key in pairs(keys) do
    if noun ~= 'payload' then
      redis.call(COUNT[noun] or 'ZCARD', key)
    end
  end
  local stored = redis.call('HMGET', keys.meta, 'min_writer', 'lineage', 'store_epoch', 'seq', 'dispatch_index',
    'trainer_version', 'gate_window', 'journal_events')
  if not stored[1] then return control.head('MISSING') end
  if tonumber(stored[1]) > args.schema then return control.head('SCHEMA', stored[1]) end
  if stored[2] ~= args.lineage then return control.head('LINEAGE', stored[2]) end
  if tonumber(stored[3]) ~= args.store_epoch then return control.head('STALE_STORE', stored[3]) end
  control.seq, control.cursor, control.version = stored[4], tonumber(stored[5]), tonumber(stored[6])
  control.window, control.journal = tonumber(stored[7] or ''), stored[8]
  if tonumber(control.seq) < args.floor then return control.head('REGRESSED', control.seq, text.whole(args.floor)) end
end

function control.set(field, value)
  control.changes[#control.changes + 1] = field
  control.changes[#control.changes + 1] = value
end

-- Draws the next numbers of a run-wide counter and returns the first; `control.close` writes it.
function control.draw(counter, count)
  local last = tonumber(redis.call('HGET', keys.meta, counter))
  control.set(counter, text.whole(last + count))
  return last + 1
end

function control.next_seq()
  return text.whole(tonumber(control.seq) + 1)
end

-- Raises seq, writes the changed fields and the journal entry. The last write of a mutation.
function control.close(kind, subjects, owner, reason)
  control.seq = control.next_seq()
  control.set('seq', control.seq)
  redis.call('HSET', keys.meta, unpack(control.changes))
  redis.call('XADD', keys.events, 'MAXLEN', '~', control.journal, '*', 'kind', kind, 'owner', owner,
    'seq', control.seq, 'groups', text.pack(subjects), unpack(reason and { 'reason', reason } or {}))
end
