-- restore: make the run what it was when a checkpoint was taken.
--
-- Why atomic: nobody sees half of it, and the raised store epoch refuses every session from before. Its work
-- grows with the buffer, which no other script's does but that of `create_checkpoint`: ready groups that live on
-- as they were are compared, the others written. Payload is not touched.
-- Orders, fences, seq and settings go on from where they are. Repeated, it is refused as stale, and the
-- control record says under `restored_by` whose restore it was and under `restored` what it answered.
-- Keys: meta slots prompts reserved ready claimed quarantined reserved_by_step ready_by_step claimed_by_step
--   ready_by_order reserved_by_owner claimed_by_owner tickets owners lost sessions admissions batches acks selected
--   steps tally counters ends dead pinned checkpoints events
-- Args: name mode incomplete token saved_ids damaged
-- States: none -> reserved ready quarantined removed
-- Returns: groups ready, tickets, groups quarantined, batches to dispatch again, groups left out, the store epoch
-- Refusals: NO_CHECKPOINT CHECKPOINT_BUILDING CHECKPOINT_DAMAGED CHECKPOINT_SETTINGS CHECKPOINT_CAPACITY
--   CHECKPOINT_STEPS
-- include: checkpoint
-- include: fit
-- include: revive
-- include: inventory
-- include: swap
-- include: refill
-- include: reopen
-- include: position
-- include: selected
local refusal = control.open()
if refusal then return refusal end
local found = checkpoint.read(args.name)
if not found or found.id ~= args.saved_ids[1] then return control.head('NO_CHECKPOINT', args.name) end
if found.state ~= 'complete' then return control.head('CHECKPOINT_BUILDING', args.name, found.state) end
refusal = fit.unlike()
if refusal then return refusal end
local kept = redis.call('HMGET', saved[1].meta, 'trainer_version', 'dispatch_index', 'admitted', 'policy')
local version, cursor = tonumber(kept[1] or ''), tonumber(kept[2] or '')
if not (version and cursor) then return control.head('CHECKPOINT_DAMAGED', args.name) end
local settings = redis.call('HMGET', keys.meta, 'groups_per_step', 'capacity', 'policy')
local switched = kept[4] and settings[3] and kept[4] ~= settings[3]
if switched and control.window then cursor = math.max(cursor, version - 1) end -- D22
local groups_per_step, capacity = tonumber(settings[1] or ''), tonumber(settings[2])
if args.incomplete ~= '' and not groups_per_step then return control.head('CHECKPOINT_STEPS') end
local plan = revive.plan(groups_per_step or 0, version, control.draw('next_fence', 1))
plan.stamped = plan.stamped or kept[4] == 'in_order'
if plan.placed > capacity then return control.head('CHECKPOINT_CAPACITY', settings[2], text.whole(plan.placed)) end

selected.let_go((selected.of()))
local staying, stay, leaving, leave = inventory.compare(plan.records)
inventory.bury_live(plan, staying, leaving)
swap.exchange()
local reopened = kept[3] and reopen.batches(plan, groups_per_step or 0, version, cursor) or 0
control.version, control.cursor = version, cursor
local totals = refill.groups(plan, staying, leaving, stay > leave)
local answer = { text.whole(totals.ready), text.whole(totals.reserved), text.whole(totals.quarantined),
  text.whole(reopened), text.whole(#plan.left), text.whole(args.store_epoch + 1) }
position.take(text.pack(answer), plan.highest)
control.close('restore', {}, '')
return control.head('OK', unpack(answer))
