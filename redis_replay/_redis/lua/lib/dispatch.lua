-- dispatch: which admitted batch reservations belong to.
--
-- Keys: admissions
-- include: text
local dispatch = {}

-- A reservation answers an open admission of its owner: the one of its target step; without a step the
-- oldest, unless its cut has admitted an index of its own.
function dispatch.answer(targets, admitted)
  local listed = redis.call('HGETALL', keys.admissions)
  local own, oldest = text.whole(args.epoch) .. ' ' .. args.owner, nil
  for at = 1, #listed, 2 do
    if listed[at + 1] == own then
      local number = tonumber(listed[at])
      if targets[listed[at]] then redis.call('HDEL', keys.admissions, listed[at]) end
      if not oldest or number < oldest then oldest = number end
    end
  end
  if admitted or not targets[''] or not oldest then return nil end
  redis.call('HDEL', keys.admissions, text.whole(oldest))
  return oldest
end
