-- migrate: bring the control record of an older schema up to this one.
--
-- Why atomic: the record says which schema it has; older writers are refused from then on.
-- May be repeated: a record that is up to date is left alone.
-- Keys: meta events
-- Args: from_schema
-- Returns: nothing
-- Refusals: none
-- include: control
local refusal = control.open()
if refusal then return refusal end
if tonumber(redis.call('HGET', keys.meta, 'schema')) == args.from_schema then
  for _, field in ipairs({ 'schema', 'min_reader', 'min_writer' }) do
    control.set(field, text.whole(args.schema))
  end
  control.set('dataset', '')
  control.close('migrate', {}, '')
end
return control.head('OK')
