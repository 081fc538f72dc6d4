-- attach: begin a session under an owner name, and end those that it replaces: an older one of the name, and
-- with `takeover` every other trainer of the run.
--
-- Why atomic: who is ended is decided in the step that ends them, so of two that take over at once the later
-- one holds the run, and what they held comes back in the same step: no group is nobody's meanwhile. A
-- session that holds more than `limit` groups is fenced here and drained by `end_owner`.
-- An older session of the name has died, which counts an attempt; a takeover is planned and counts none.
-- May be repeated: a second epoch ends the first, which holds nothing.
-- Keys: meta slots reserved ready claimed quarantined reserved_by_step ready_by_step claimed_by_step
--   ready_by_order reserved_by_owner claimed_by_owner tickets owners lost sessions batches acks selected counters
--   dead steps events
-- Args: owner role world lease_ms host takeover limit
-- States: reserved -> reserved quarantined; claimed -> ready quarantined
-- Returns: the new epoch, then of each session that was ended its epoch, its name and whether it holds more
-- Refusals: CORRUPT
-- include: holding
local refusal = control.open()
if refusal then return refusal end
local ended, room, counted = {}, args.limit, 1 - args.takeover
local replaces_trainers = args.takeover == 1 and args.role == 'trainer'
for _, found in ipairs(owner.all()) do
  if found.name == args.owner or replaces_trainers and found.role == 'trainer' then
    local held, corrupt = holding.load(found.name, found.epoch, counted, room)
    if not held then return corrupt end
    ended[#ended + 1], room = held, room - #held.reserved - #held.claimed
  end
end

local epoch, ids, answer = control.draw('next_fence', 2), {}, {}
for _, held in ipairs(ended) do
  redis.call('HDEL', keys.owners, held.name)
  for _, id in ipairs((holding.give_back(held, epoch + 1))) do
    ids[#ids + 1] = id
  end
  for _, item in ipairs({ held.epoch, held.name, held.more and '1' or '0' }) do
    answer[#answer + 1] = item
  end
end
owner.write(args.owner, { epoch = epoch, heartbeat = 0, role = args.role, world = args.world,
  lease = text.whole(args.lease_ms), host = args.host })
control.close('attach', ids, args.owner)
return control.head('OK', text.whole(epoch), unpack(answer))
