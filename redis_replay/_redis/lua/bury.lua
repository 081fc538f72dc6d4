-- bury: forget collected keys, their payload being freed already.
--
-- Why atomic: an entry and the immutable record it names go together. May be repeated.
-- Keys: meta groups dead
-- Args: entries
-- Returns: entries forgotten
-- Refusals: none
-- include: control
local refusal = control.open()
if refusal then return refusal end
if #args.entries == 0 then return control.head('OK', '0') end
redis.call('HDEL', keys.groups, unpack(args.entries))
return control.head('OK', text.whole(redis.call('ZREM', keys.dead, unpack(args.entries))))
