-- tally: reward statistics by the step that each group was generated for.
--
-- One field a step: "groups zero_variance reward_sum samples first_sum first_samples". Sums are doubles
-- written with 17 digits, so that they are those of the pure functions. A step that was drained is
-- not begun again, and of too many that were never drained the newest are kept.
-- Keys: meta tally
-- Args: samples reward_sum zero_variance
-- Refusals: TALLY
-- include: control
local tally = {}

local MOST_STEPS = 1024

local function oldest()
  local lowest
  for _, step in ipairs(redis.call('HKEYS', keys.tally)) do
    if not lowest or tonumber(step) < lowest then lowest = tonumber(step) end
  end
  return lowest
end

local function sum(left, right)
  return string.format('%.17g', tonumber(left) + tonumber(right))
end

-- The refusal of a group whose rewards would take a sum of its step beyond a double, or nil.
function tally.check(found)
  local kept = found.target and redis.call('HGET', keys.tally, text.whole(found.target))
  local known = text.words(kept or '0 0 0 0 0 0')
  for _, at in ipairs({ 3, 5 }) do
    local total = tonumber(known[at]) + tonumber(args.reward_sum)
    if math.abs(total) == math.huge then return control.head('TALLY', found.id, text.whole(found.target)) end
  end
end

function tally.record(step, replacement)
  if not step or args.samples == 0 then return end
  local drained = tonumber(redis.call('HGET', keys.meta, 'drained_step') or '-1')
  if step <= drained then return end
  local field = text.whole(step)
  local kept = redis.call('HGET', keys.tally, field)
  if not kept and redis.call('HLEN', keys.tally) >= MOST_STEPS then
    if step < oldest() then return end
    redis.call('HDEL', keys.tally, text.whole(oldest()))
  end
  local known = text.words(kept or '0 0 0 0 0 0')
  local first = replacement == 0
  redis.call('HSET', keys.tally, field, table.concat({ text.whole(known[1] + 1),
    text.whole(known[2] + args.zero_variance), sum(known[3], args.reward_sum), text.whole(known[4] + args.samples),
    first and sum(known[5], args.reward_sum) or known[5],
    first and text.whole(known[6] + args.samples) or known[6] }, ' '))
end
