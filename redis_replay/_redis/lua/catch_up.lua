-- catch_up: bring a run that is behind the model up to the model's step.
--
-- Why atomic: version and cursor rise together, and groups of steps that the model has behind it end with them,
-- so nobody waits for one and no late commit fills one. Up to `limit` groups a call.
-- May be repeated until nothing remains.
-- Keys: meta slots prompts reserved ready reserved_by_step ready_by_step ready_by_order reserved_by_owner tickets
--   admissions steps counters ends dead events
-- Args: step limit
-- States: reserved -> aborted; ready -> evicted
-- Returns: groups aborted, groups evicted, whether more may remain
-- Refusals: CORRUPT
-- include: retire
local refusal = control.open()
if refusal then return refusal end
local step, passed, spent = text.whole(args.step), {}, {}
if redis.call('HGET', keys.meta, 'policy') == 'in_order' then
  passed = redis.call('ZRANGEBYSCORE', keys.reserved_by_step, '-inf', '(' .. step, 'LIMIT', 0, args.limit)
  spent = redis.call('ZRANGEBYSCORE', keys.ready_by_step, '-inf', '(' .. step, 'LIMIT', 0, args.limit)
end
local late, corrupt = slot.load_listed(passed, 'reserved')
if not late then return corrupt end
local old, damaged = slot.load_listed(spent, 'ready')
if not old then return damaged end
local behind = control.version < args.step or control.cursor < args.step - 1
if not behind and #late + #old == 0 then return control.head('OK', '0', '0', '0') end
retire.groups(late, 'aborted', 'stale')
retire.groups(old, 'evicted', 'stale')
if control.version < args.step then
  local first = tonumber(redis.call('HGET', keys.meta, 'admitted') or '') or args.step
  local batches = math.max(0, math.min(args.step, control.cursor + 1) - math.max(control.version, first))
  control.version = args.step
  steps.fold(batches)
  control.set('trainer_version', step)
end
if control.cursor < args.step - 1 then
  control.cursor = args.step - 1
  control.set('dispatch_index', text.whole(control.cursor))
end
for _, index in ipairs(redis.call('HKEYS', keys.admissions)) do
  if tonumber(index) < args.step then redis.call('HDEL', keys.admissions, index) end
end
control.close('catch_up', {}, '')
local more = #late == args.limit or #old == args.limit
return control.head('OK', text.whole(#late), text.whole(#old), more and '1' or '0')
