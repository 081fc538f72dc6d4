-- swap: puts a checkpoint's copies in the place of the live keys.
--
-- Keys: slots prompts reserved claimed quarantined reserved_by_step claimed_by_step reserved_by_owner
--   claimed_by_owner tickets owners lost sessions admissions batches acks steps tally counters ends
local swap = {}

-- Puts the copies in place. The sets of ready groups stay, for `refill` to change.
function swap.exchange()
  redis.call('UNLINK', keys.slots, keys.prompts, keys.reserved, keys.claimed, keys.quarantined, keys.reserved_by_step,
    keys.claimed_by_step, keys.reserved_by_owner, keys.claimed_by_owner, keys.tickets, keys.owners, keys.lost,
    keys.sessions, keys.admissions, keys.batches, keys.acks, keys.steps, keys.tally, keys.counters, keys.ends)
  for copy, live in pairs({ [saved[1].slots] = keys.slots, [saved[1].prompts] = keys.prompts,
    [saved[1].admissions] = keys.admissions, [saved[1].steps] = keys.steps, [saved[1].tally] = keys.tally,
    [saved[1].counters] = keys.counters, [saved[1].ends] = keys.ends }) do
    redis.call('COPY', copy, live)
  end
end
