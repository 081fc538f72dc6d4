-- commit: make a reserved group ready, its payload being written already; `elsewhere` are the bytes of
--   it that other nodes of a cluster have acknowledged, which no script can see.
--
-- Why atomic: the group becomes visible with its record and all its bytes, or not at all. Committing
-- again with the same fence is one commit; with another it is refused and nothing changes.
-- Keys: meta slots groups reserved ready reserved_by_step ready_by_step ready_by_order reserved_by_owner
--   tickets counters tally sessions owners events
-- Args: group_id fence start finish payload_bytes blob samples reward_sum zero_variance elsewhere
-- States: reserved -> ready
-- Returns: nothing
-- Refusals: UNKNOWN STATE ATTEMPT VERSION PAYLOAD TALLY
-- include: session
-- include: listing
-- include: tally
local refusal = session.open()
if refusal then return refusal end
local loaded, absent = slot.find({ args.group_id })
if not loaded then return absent end
local found = loaded[1]
if found.payload_fence == args.fence then return control.head('OK') end
if found.fence ~= args.fence or found.epoch ~= args.epoch then
  return control.head('ATTEMPT', args.group_id, text.whole(found.attempt))
end
refusal = slot.unfit(loaded, 'reserved')
if refusal then return refusal end
if args.start < found.start or (args.start > found.start and found.attempt == 1) then
  return control.head('VERSION', args.group_id, text.whole(found.start), text.whole(args.start))
end
local written = args.elsewhere
for _, key in ipairs(keys.payload) do
  written = written + redis.call('STRLEN', key)
end
if written ~= args.payload_bytes then
  return control.head('PAYLOAD', args.group_id, text.whole(args.payload_bytes), text.whole(written))
end
refusal = tally.check(found)
if refusal then return refusal end

listing.move(loaded, function()
  found.state, found.epoch, found.payload_fence = 'ready', nil, args.fence
  found.start, found.finish, found.bytes = args.start, args.finish, args.payload_bytes
end)
redis.call('HSET', keys.groups, text.whole(args.fence) .. ':' .. args.group_id, args.blob)
redis.call('HINCRBY', keys.counters, 'committed_total', 1)
redis.call('HINCRBY', keys.counters, 'payload_bytes', text.whole(args.payload_bytes))
tally.record(found.target, found.replacement)
return session.close('commit', { args.group_id })
