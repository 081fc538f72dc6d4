-- set_window: retune the live gate window.
--
-- Why atomic: the window takes effect for every dispatcher at once. May be repeated.
-- Epoch 0 is that of a session not attached yet.
-- Keys: meta owners events
-- Args: owner epoch gate_window
-- Returns: nothing
-- Refusals: FENCED
-- include: owner
local refusal = control.open()
if refusal then return refusal end
refusal = args.epoch > 0 and owner.fenced()
if refusal then return refusal end
control.window = args.gate_window
control.set('gate_window', text.whole(args.gate_window))
control.close('window', {}, args.owner)
return control.head('OK')
