-- attach: begin a session under an owner name; an older session of that name is fenced at once.
--
-- Why atomic: name, epoch and the older session's loss change together, so one name has one holder.
-- The older session's groups are given back by `end_owner`, 256 a call; until then they are nobody's.
-- May be repeated: a second epoch fences the first, which holds nothing.
-- Keys: meta owners lost events
-- Args: owner role world lease_ms host planned
-- Returns: the new epoch, and the epoch of the session it replaced or ''
-- Refusals: none
-- include: control
-- include: owner
local refusal = control.open()
if refusal then return refusal end
local older = owner.read(args.owner)
local epoch = control.draw('next_fence', 1)
if older then
  redis.call('HSET', keys.lost, text.whole(older.epoch), (args.planned == 1 and '0 ' or '1 ') .. args.owner)
end
owner.write(args.owner, { epoch = epoch, heartbeat = 0, role = args.role, world = args.world,
  lease = text.whole(args.lease_ms), host = args.host })
control.close('attach', {}, args.owner)
return control.head('OK', text.whole(epoch), older and text.whole(older.epoch) or '')
