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
  local since = control.version
  control.version = args.trainer_version
  steps.fold(since)
  control.set('trainer_version', text.whole(control.version))
  control.close('version', {}, '')
end
return control.head('OK')
