-- position: the control record of a restored run.
--
-- Keys: meta
-- Args: token
-- include: control
local position = {}

-- Takes position and policy from the checkpoint; settings and counters go on from where they are.
function position.take(answer, highest)
  local live = redis.call('HMGET', keys.meta, 'policy', 'windows', 'loader_revision', 'next_order', 'dataset')
  local kept = redis.call('HMGET', saved[1].meta, 'policy', 'windows', 'gate_window', 'admitted', 'drained_step',
    'loader_state', 'dataset', 'exhausted')
  if not live[1] and kept[1] then
    control.set('policy', kept[1])
    control.set('windows', kept[2] or '')
  end
  if not live[1] or live[1] == kept[1] and live[2] == kept[2] then
    control.window = tonumber(kept[3] or '')
    control.set('gate_window', kept[3] or '')
  end
  redis.call('HDEL', keys.meta, 'admitted', 'drained_step', 'loader_state', 'last_step', 'last_claims', 'last_answer')
  control.set('exhausted', kept[8] or '')
  for at, name in ipairs({ 'admitted', 'drained_step', 'loader_state' }) do
    if kept[at + 3] then control.set(name, kept[at + 3]) end
  end
  if kept[7] and (live[5] or '') == '' then control.set('dataset', kept[7]) end
  control.set('trainer_version', text.whole(control.version))
  control.set('dispatch_index', text.whole(control.cursor))
  control.set('loader_revision', text.whole(tonumber(live[3]) + 1))
  control.set('next_order', text.whole(math.max(highest, tonumber(live[4]))))
  control.set('store_epoch', text.whole(args.store_epoch + 1))
  control.set('restored_by', args.token)
  control.set('restored', answer)
end
