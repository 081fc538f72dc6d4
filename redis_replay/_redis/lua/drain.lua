-- drain: read the reward statistics of a step and forget it and every older one.
--
-- Why atomic: a group recorded meanwhile is in this answer or in none; a lost reply is answered again.
-- Keys: meta tally sessions owners events
-- Args: step
-- Returns: the step's statistics, or nothing when nothing was generated for it
-- Refusals: none
-- include: session
local refusal = session.open()
if refusal then return refusal end
local kept = redis.call('HGET', keys.tally, text.whole(args.step))
local passed = {}
for _, step in ipairs(redis.call('HKEYS', keys.tally)) do
  if tonumber(step) <= args.step then passed[#passed + 1] = step end
end
if #passed > 0 then redis.call('HDEL', keys.tally, unpack(passed)) end
local drained = tonumber(redis.call('HGET', keys.meta, 'drained_step') or '-1')
control.set('drained_step', text.whole(math.max(drained, args.step)))
return session.close('drain', {}, kept or '')
