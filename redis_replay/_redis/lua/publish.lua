-- publish: raise the trainer version; it never falls.
--
-- Why atomic: two publishers leave the larger version. May be repeated.
-- Keys: meta steps events
-- Args: trainer_version
-- Returns: nothing
-- Refusals: none
-- include: steps
local refusal = control.open()
if refusal then return refusal end
if args.trainer_version > control.version then
  control.version = args.trainer_version
  local kept = redis.call('HMGET', keys.meta, 'policy', 'groups_per_step')
  steps.fold(kept[1], tonumber(kept[2] or ''), nil)
  control.set('trainer_version', text.whole(control.version))
  control.close('version', {}, '')
end
return control.head('OK')
