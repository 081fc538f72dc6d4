-- end_owner: end a session that detached, was silent for a lease or was replaced, and give back what it held.
--
-- Why atomic: heartbeat and epoch are compared in the step that fences, so a session that lives is never
-- ended. Then up to `limit` groups: reserved ones become redispatch tickets, claimed ones ready at their
-- old place. A group that was held at a death counts an attempt; past the limit it is quarantined.
-- May be repeated until nothing remains; a repetition changes nothing more.
-- Keys: meta slots reserved ready claimed quarantined reserved_by_step ready_by_step claimed_by_step
--   ready_by_order reserved_by_owner claimed_by_owner tickets owners lost sessions batches acks selected counters
--   dead steps events
-- Args: owner epoch heartbeat planned limit
-- States: reserved -> reserved quarantined; claimed -> ready quarantined
-- Returns: tickets made, groups requeued, groups quarantined, whether more remain
-- Refusals: ALIVE CORRUPT
-- include: holding
local refusal = control.open()
if refusal then return refusal end
local holder, lost = owner.read(args.owner), redis.call('HGET', keys.lost, text.whole(args.epoch))
local attached = holder and holder.epoch == args.epoch
if attached then
  if args.heartbeat and holder.heartbeat ~= args.heartbeat then
    return control.head('ALIVE', text.whole(holder.heartbeat))
  end
  lost = args.planned == 1 and '0' or '1'
end
if not lost then return control.head('OK', '0', '0', '0', '0') end
local held, corrupt = holding.load(args.owner, args.epoch, tonumber(string.sub(lost, 1, 1)), args.limit)
if corrupt then return corrupt end

if attached then redis.call('HDEL', keys.owners, args.owner) end
local ids, quarantined = holding.give_back(held, control.draw('next_fence', 1))
control.close('end_owner', ids, args.owner)
return control.head('OK', text.whole(#held.reserved), text.whole(#held.claimed), text.whole(quarantined),
  held.more and '1' or '0')
