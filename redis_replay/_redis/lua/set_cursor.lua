-- set_cursor: seed the dispatch cursor of a run that has not admitted yet.
--
-- Why atomic: a seed after the first admission would skip or repeat a batch, so both are compared here.
-- May be repeated: the same seed changes nothing. Epoch 0 is that of a session not attached yet.
-- Keys: meta owners events
-- Args: owner epoch cursor exact
-- Returns: whether the seed was taken
-- Refusals: FENCED CURSOR
-- include: owner
local refusal = control.open()
if refusal then return refusal end
refusal = args.epoch > 0 and owner.fenced()
if refusal then return refusal end
if control.cursor == args.cursor then return control.head('OK', '1') end
if redis.call('HGET', keys.meta, 'admitted') then
  if args.exact == 1 then return control.head('CURSOR', text.whole(args.cursor)) end
  return control.head('OK', '0')
end
control.cursor = args.cursor
control.set('dispatch_index', text.whole(args.cursor))
control.close('cursor', {}, args.owner)
return control.head('OK', '1')
