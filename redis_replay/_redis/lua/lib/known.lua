-- known: whether the caller has named the copies of every checkpoint, which a script cannot find by itself.
--
-- Keys: checkpoints
-- Args: saved_ids
-- Refusals: CHECKPOINTS_MOVED
-- include: checkpoint
local known = {}

function known.moved()
  local given, count = {}, 0
  for _, id in ipairs(args.saved_ids) do
    given[id] = true
  end
  for _, name in ipairs(redis.call('HKEYS', keys.checkpoints)) do
    count = count + 1
    if not given[checkpoint.read(name).id] then return control.head('CHECKPOINTS_MOVED') end
  end
  if count ~= #args.saved_ids then return control.head('CHECKPOINTS_MOVED') end
end
