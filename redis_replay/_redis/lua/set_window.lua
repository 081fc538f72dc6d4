-- set_window: retune the live gate window.
--
-- Why atomic: the window takes effect for every dispatcher at once. May be repeated.
-- Keys: meta events
-- Args: gate_window
-- Returns: nothing
-- Refusals: none
-- include: control
local refusal = control.open()
if refusal then return refusal end
control.window = args.gate_window
control.set('gate_window', text.whole(args.gate_window))
control.close('window', {}, '')
return control.head('OK')
