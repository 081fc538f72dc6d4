-- open_run: create a run, or read the one that is there.
--
-- Why atomic: of two hosts that open a new run at once, one creates it and both read the same record.
-- Keys: meta
-- Args: create settings
-- Returns: whether it was created, then the control record's fields and values
-- Refusals: MISSING
local created = '0'
if redis.call('HLEN', keys.meta) == 0 then
  if args.create == 0 then return { 'MISSING', '', '', '', '' } end
  redis.call('HSET', keys.meta, unpack(args.settings))
  created = '1'
end
return { 'OK', '', '', '', '', created, unpack(redis.call('HGETALL', keys.meta)) }
