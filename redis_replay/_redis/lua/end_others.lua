-- end_others: end every session but the caller's own, for a job that is taken up again as a whole.
--
-- Why atomic: who is ended is decided in the step that ends them, and all of them in the first call. Up to `limit`
-- groups a call are given back, as `end_owner` does it; no attempt is counted but for those that had died before.
-- May be repeated until nothing remains.
-- Keys: meta slots reserved ready claimed quarantined reserved_by_step ready_by_step claimed_by_step
--   ready_by_order reserved_by_owner claimed_by_owner tickets owners lost sessions batches acks selected counters
--   dead steps events
-- Args: limit own
-- States: reserved -> reserved quarantined; claimed -> ready quarantined
-- Returns: sessions ended, groups requeued, whether more remain
-- Refusals: CORRUPT
-- include: holding
local refusal = control.open()
if refusal then return refusal end
local own, ended, room, attached = {}, {}, args.limit, 0
for _, epoch in ipairs(args.own) do
  own[epoch] = true
end
local function take(name, epoch, counted)
  local held, corrupt = holding.load(name, epoch, counted, room)
  if not held then return corrupt end
  ended[#ended + 1], room = held, room - #held.reserved - #held.claimed
end
for _, found in ipairs(owner.all()) do
  if not own[found.epoch] then
    refusal = take(found.name, found.epoch, 0)
    if refusal then return refusal end
    attached = attached + 1
  end
end
local lost = redis.call('HGETALL', keys.lost)
for at = 1, #lost, 2 do
  local counted, name = string.match(lost[at + 1], '^(%d) (.*)$')
  refusal = take(name, tonumber(lost[at]), tonumber(counted))
  if refusal then return refusal end
end
if #ended == 0 then return control.head('OK', '0', '0', '0') end

local fence, ids, claimed, more = control.draw('next_fence', 1), {}, 0, '0'
for at, held in ipairs(ended) do
  if at <= attached then redis.call('HDEL', keys.owners, held.name) end
  for _, id in ipairs((holding.give_back(held, fence))) do
    ids[#ids + 1] = id
  end
  claimed = claimed + #held.claimed
  if held.more then more = '1' end
end
control.close('end_owner', ids, '')
return control.head('OK', text.whole(attached), text.whole(claimed), more)
