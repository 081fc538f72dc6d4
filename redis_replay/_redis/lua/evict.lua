-- evict: drop ready groups that the policy can no longer select, oldest first, `limit` a call.
--
-- Why atomic: only ready groups are touched, so an eviction never races a commit or a claim.
-- Keys: meta slots prompts ready ready_by_step ready_by_order counters ends dead steps sessions owners events
-- Args: by_step below limit policy
-- States: ready -> evicted
-- Returns: groups dropped
-- Refusals: POLICY CORRUPT
-- include: session
-- include: policy
-- include: retire
local refusal = session.open()
if refusal then return refusal end
refusal = policy.check()
if refusal then return refusal end
local key = args.by_step == 1 and keys.ready_by_step or keys.ready
local members = redis.call('ZRANGEBYSCORE', key, '-inf', '(' .. text.whole(args.below), 'LIMIT', 0, args.limit)
if #members == 0 then return control.head('OK', '0') end
local slots, corrupt = slot.load_listed(members, 'ready')
if not slots then return corrupt end
retire.groups(slots, 'evicted', 'stale')
return session.close('evict', slot.ids(members), text.whole(#slots))
