-- policy: whether the run is still bound to the policy by which a caller selects, or drops what it cannot select.
--
-- Another host may have switched the run to another policy since this one has bound it.
-- Keys: meta
-- Args: policy
-- Refusals: POLICY
-- include: control
local policy = {}

function policy.check()
  local bound = args.policy ~= '' and redis.call('HGET', keys.meta, 'policy')
  if bound and bound ~= args.policy then return control.head('POLICY', bound) end
end
