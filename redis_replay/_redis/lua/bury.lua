-- bury: forget condemned entries, their payload being freed already.
--
-- Why atomic: a single removal. May be repeated.
-- Keys: meta condemned
-- Args: entries
-- Returns: entries forgotten
-- Refusals: none
-- include: control
local refusal = control.open()
if refusal then return refusal end
if #args.entries == 0 then return control.head('OK', '0') end
return control.head('OK', text.whole(redis.call('ZREM', keys.condemned, unpack(args.entries))))
