-- fit: whether a checkpoint is of the same kind as the run that it is to be restored in.
--
-- Keys: meta
-- Refusals: CHECKPOINT_SETTINGS
-- include: control
local fit = {}

-- The refusal that names a setting in which checkpoint and run differ, or nil.
function fit.unlike()
  local names = { 'group_size', 'groups_per_step', 'dataset', 'policy' }
  local live, kept = redis.call('HMGET', keys.meta, unpack(names)), redis.call('HMGET', saved[1].meta, unpack(names))
  for at, name in ipairs(names) do
    local differs = live[at] and kept[at] and live[at] ~= '' and kept[at] ~= '' and live[at] ~= kept[at]
    if differs and (name ~= 'policy' or live[at] == 'in_order' or kept[at] == 'in_order') then
      return control.head('CHECKPOINT_SETTINGS', name, kept[at], live[at])
    end
  end
end
