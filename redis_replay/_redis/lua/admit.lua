-- admit: advance the dispatch cursor by one, if the gate is open.
--
-- Why atomic: the gate is checked in the step that advances, so of two callers one advances. An index
-- whose owner is gone is given out first, without an advance. While the payload is at its limit, none is.
-- Keys: meta counters sessions owners events admissions
-- Args: seen_version
-- Returns: the admitted index
-- Refusals: GATE FULL_BYTES
-- include: session
-- include: admission
-- include: bytes
local refusal = session.open()
if refusal then return refusal end
refusal = bytes.check()
if refusal then return refusal end
local number = admission.orphan()
if not number then
  if not admission.gate_open() then return control.head('GATE') end
  number = admission.advance()
end
admission.keep_open(number)
return session.close('admit', {}, text.whole(number))
