-- settle: consume all claims of a session and, for a step, raise the trainer version.
--
-- Why atomic: what was trained and the version that says so change together. Under `in_order` the
-- reserved groups of passed steps are aborted here, so that no late commit can fill a closed step.
-- Selections for good that are named among the batches are let go. A step that was settled answers again with
-- its first answer to whoever names the same claims. Asked to, it keeps a checkpoint of what it leaves.
-- Keys: meta slots prompts reserved ready claimed quarantined reserved_by_step claimed_by_step reserved_by_owner
--   claimed_by_owner tickets batches acks admissions selected steps tally counters ends dead checkpoints sessions
--   owners events
-- Args: step exact empty checkpoint created_ms extra batches group_ids saved_ids
-- States: claimed -> trained; reserved -> aborted
-- Returns: groups trained, groups aborted, then the trained groups' ids
-- Refusals: STEP MISMATCH NOTHING ACKS CORRUPT CHECKPOINT_EXISTS CHECKPOINTS_FULL SELECTED
-- include: session
-- include: retire
-- include: owner
-- include: manifest
-- include: checkpoint
-- include: selected
local refusal = session.open()
if refusal then return refusal end
local claims, seen = {}, {}
for at, number in ipairs(args.batches) do
  claims[at], seen[number] = text.whole(number), true
end
claims = table.concat(claims, ',')
local kept = redis.call('HMGET', keys.meta, 'policy', 'last_step', 'last_claims', 'last_answer')
if args.step and args.step ~= control.version then
  if tonumber(kept[2] or '') == args.step and kept[3] == claims then
    return control.head('OK', unpack(text.unpack(kept[4])))
  end
  return control.head('STEP', text.whole(args.step))
end
local selections, chosen = selected.of(args.epoch, args.batches)
local members = owner.held(keys.claimed_by_owner, args.epoch, 1025)
local slots, corrupt = slot.load_listed(members, 'claimed')
if not slots then return corrupt end
local ids, owned = slot.ids(members), {}
for _, id in ipairs(ids) do
  owned[id] = true
end
if args.exact == 1 then
  local unknown, missing = {}, {}
  for _, id in ipairs(args.group_ids) do
    if not owned[id] then unknown[#unknown + 1] = id end
    owned[id] = nil
  end
  for _, id in ipairs(ids) do
    if owned[id] then missing[#missing + 1] = id end
  end
  if #unknown + #missing > 0 then return control.head('MISMATCH', text.pack(unknown), text.pack(missing)) end
else
  if #slots + chosen == 0 and args.empty == 0 then return control.head('NOTHING') end
  local unseen = {}
  for _, found in ipairs(slots) do
    if not seen[found.batch] then unseen[#unseen + 1] = found.id end
  end
  if #unseen > 0 then return control.head('MISMATCH', '', text.pack(unseen)) end
end
for _, number in ipairs(manifest.numbers(slots)) do
  local absent = manifest.absent(number)
  if #absent > 0 then return control.head('ACKS', text.whole(number), unpack(absent)) end
end
local late = {}
if args.step and kept[1] == 'in_order' then
  local passed = redis.call('ZRANGEBYSCORE', keys.reserved_by_step, '-inf', text.whole(args.step), 'LIMIT', 0, 1024)
  late, corrupt = slot.load_listed(passed, 'reserved')
  if not late then return corrupt end
end
refusal = args.checkpoint ~= '' and (checkpoint.taken(args.checkpoint, 0) or selected.left(selections))
if refusal then return refusal end

retire.groups(slots, 'trained', 'trained')
retire.groups(late, 'aborted', 'stale')
manifest.forget(slots, {})
selected.let_go(selections)
steps.train(#slots)
local answer = { text.whole(#slots), text.whole(#late), unpack(ids) }
if args.step then
  control.version = args.step + 1
  steps.fold(args.step)
  control.set('trainer_version', text.whole(control.version))
  control.set('last_step', text.whole(args.step))
  control.set('last_claims', claims)
  control.set('last_answer', text.pack(answer))
end
if args.checkpoint ~= '' then checkpoint.save(args.checkpoint, 0) end
return session.close('settle', ids, unpack(answer))
