-- set_dataset: note which dataset the loader position of a run belongs to.
--
-- Why atomic: the older name is compared, and a position of another dataset goes in the same step, so it is
-- never applied to the new one.
-- May be repeated.
-- Keys: meta events
-- Args: dataset older
-- Returns: nothing
-- Refusals: DATASET
-- include: control
local refusal = control.open()
if refusal then return refusal end
local stored = redis.call('HMGET', keys.meta, 'dataset', 'loader_revision')
local known = stored[1] or ''
if known == args.dataset then return control.head('OK') end
if known ~= args.older then return control.head('DATASET', known, args.dataset) end
if known ~= '' then
  redis.call('HDEL', keys.meta, 'loader_state', 'exhausted')
  control.set('loader_revision', text.whole(tonumber(stored[2]) + 1))
end
control.set('dataset', args.dataset)
control.close('dataset', {}, '')
return control.head('OK')
