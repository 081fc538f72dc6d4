-- resize: change the capacity of a run, in groups and in payload bytes.
--
-- Why atomic: the new capacity is compared with the places taken now; finished work is never dropped.
-- Keys: meta reserved ready claimed events
-- Args: capacity max_payload_bytes
-- Returns: nothing
-- Refusals: FULL
-- include: control
local refusal = control.open()
if refusal then return refusal end
local taken = redis.call('ZCARD', keys.reserved) + redis.call('ZCARD', keys.ready) + redis.call('ZCARD', keys.claimed)
if taken > args.capacity then return control.head('FULL', text.whole(args.capacity), text.whole(taken), '0') end
control.set('capacity', text.whole(args.capacity))
control.set('max_payload_bytes', args.max_payload_bytes and text.whole(args.max_payload_bytes) or '')
control.close('resize', {}, '')
return control.head('OK')
