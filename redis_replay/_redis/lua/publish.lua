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
  local first = tonumber(redis.call('HGET', keys.meta, 'admitted') or '') or args.trainer_version
  local batches = math.max(0, args.trainer_version - math.max(control.version, first))
  control.version = args.trainer_version
  steps.fold(batches)
  control.set('trainer_version', text.whole(control.version))
  control.close('version', {}, '')
end
return control.head('OK')
