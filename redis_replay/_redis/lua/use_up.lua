-- use_up: use up a call number, so that no attempt of an earlier call of its place runs any more.
--
-- Why atomic: a single entry in the session's window. An attempt that was stuck on its way while its repetition was
-- refused, or found nothing to do, would run now, and nobody would know what it did; it is refused as expired.
-- Keys: meta sessions owners
-- Args: none
-- Returns: nothing
-- Refusals: none
-- include: session
local refusal = session.open()
if refusal then return refusal end
return session.keep()
