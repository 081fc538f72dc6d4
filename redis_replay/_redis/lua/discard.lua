-- discard: delete a run: all of its control keys, its checkpoints included.
--
-- Why atomic: nobody attaches between the look at the sessions and the end, and no reader sees half a run.
-- Payload, which may lie on other servers, is freed afterwards. Repeated, the run is missing.
-- Keys: meta slots prompts groups reserved ready claimed quarantined reserved_by_step ready_by_step claimed_by_step
--   ready_by_order reserved_by_owner claimed_by_owner tickets owners lost sessions admissions batches acks steps tally
--   counters ends events dead selected pinned condemned checkpoints
-- Args: force saved_ids own
-- Returns: live groups that were deleted
-- Refusals: IN_USE CHECKPOINTS_MOVED
-- include: known
-- include: owner
local refusal = control.open()
if refusal then return refusal end
local own = {}
for _, epoch in ipairs(args.own) do
  own[epoch] = true
end
for _, found in ipairs(owner.all()) do
  if args.force == 0 and not own[found.epoch] then return control.head('IN_USE', found.name, found.role) end
end
refusal = known.moved()
if refusal then return refusal end

local live = redis.call('HLEN', keys.slots)
for _, copies in ipairs(saved) do
  redis.call('UNLINK', copies.meta, copies.slots, copies.prompts, copies.admissions, copies.steps, copies.tally,
    copies.counters, copies.ends)
end
redis.call('UNLINK', keys.meta, keys.slots, keys.prompts, keys.groups, keys.reserved, keys.ready, keys.claimed,
  keys.quarantined, keys.reserved_by_step, keys.ready_by_step, keys.claimed_by_step, keys.ready_by_order,
  keys.reserved_by_owner, keys.claimed_by_owner, keys.tickets, keys.owners, keys.lost, keys.sessions, keys.admissions,
  keys.batches, keys.acks, keys.steps, keys.tally, keys.counters, keys.ends, keys.events, keys.dead, keys.selected,
  keys.pinned, keys.condemned, keys.checkpoints)
return control.head('OK', text.whole(live))
