-- bind_policy: write a sampler's policy into the run, or compare it with the one that is there.
--
-- Why atomic: the policy, its gate window and the cursor that a gated policy needs change together.
-- May be repeated: binding the bound policy changes nothing. Epoch 0 is that of a session not attached yet.
-- Keys: meta slots owners events
-- Args: owner epoch policy windows gate_window required_capacity switch
-- Returns: what happened: bound, same, windows or switched, and the stored policy and windows before
-- Refusals: FENCED CAPACITY POLICY POLICY_LIVE
-- include: owner
local refusal = control.open()
if refusal then return refusal end
refusal = args.epoch > 0 and owner.fenced()
if refusal then return refusal end
local stored = redis.call('HMGET', keys.meta, 'policy', 'windows', 'capacity')
local policy, windows = stored[1] or '', stored[2] or ''
if args.required_capacity and args.required_capacity > tonumber(stored[3]) then
  return control.head('CAPACITY', stored[3], text.whole(args.required_capacity))
end
if policy == args.policy and windows == args.windows then return control.head('OK', 'same', policy, windows) end
local outcome = policy == '' and 'bound' or (policy == args.policy and 'windows' or 'switched')
if outcome == 'switched' then
  if args.switch == 0 then return control.head('POLICY', policy) end
  local live = redis.call('HLEN', keys.slots)
  if live > 0 and (policy == 'in_order' or args.policy == 'in_order') then
    return control.head('POLICY_LIVE', policy, text.whole(live))
  end
end
control.set('policy', args.policy)
control.set('windows', args.windows)
control.window = args.gate_window
control.set('gate_window', args.gate_window and text.whole(args.gate_window) or '')
if outcome == 'switched' and args.gate_window then
  control.cursor = math.max(control.cursor, control.version - 1)
  control.set('dispatch_index', text.whole(control.cursor))
end
control.close('policy', {}, args.owner)
return control.head('OK', outcome, policy, windows)
