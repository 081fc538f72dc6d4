-- heartbeat: count one sign of life of a session, and report all owners for whoever watches them.
--
-- Why atomic: a session that was expired in between is refused, never revived.
-- May be repeated: an extra count is harmless.
-- Keys: meta owners lost
-- Args: owner epoch
-- Returns: the number of owners, each name and record, then each lost epoch and its record
-- Refusals: FENCED
-- include: owner
local refusal = control.open()
if refusal then return refusal end
refusal = owner.fenced()
if refusal then return refusal end
local own = owner.read(args.owner)
own.heartbeat = own.heartbeat + 1
owner.write(args.owner, own)
local owners, lost = redis.call('HGETALL', keys.owners), redis.call('HGETALL', keys.lost)
local answer = control.head('OK', text.whole(#owners / 2), unpack(owners))
for _, item in ipairs(lost) do
  answer[#answer + 1] = item
end
return answer
