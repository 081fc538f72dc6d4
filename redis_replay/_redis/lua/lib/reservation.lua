-- reservation: gives places in the buffer to new groups, all or none.
--
-- Keys: meta slots prompts reserved ready claimed counters admissions
-- Args: group_ids weights targets prompt_refs replacements
-- Refusals: DUPLICATE FULL
-- include: listing
-- include: dispatch
-- include: steps
local reservation = {}

function reservation.check()
  local capacity = redis.call('HGET', keys.meta, 'capacity')
  local taken = redis.call('ZCARD', keys.reserved) + redis.call('ZCARD', keys.ready) + redis.call('ZCARD', keys.claimed)
  for _, id in ipairs(args.group_ids) do
    if redis.call('HEXISTS', keys.slots, id) == 1 then return control.head('DUPLICATE', id) end
  end
  if taken + #args.group_ids > tonumber(capacity) then
    return control.head('FULL', capacity, text.whole(taken), text.whole(#args.group_ids))
  end
end

-- The batch that unstamped reservations belong to: the cut's, the admission they answer, or the last. A
-- replacement answers no admission: its batch was dispatched before.
function reservation.batch(admitted)
  local named = {}
  for at, target in ipairs(args.targets) do
    if args.replacements[at] == 0 then named[target] = true end
  end
  local answered = redis.call('HLEN', keys.admissions) > 0 and dispatch.answer(named, admitted)
  return admitted or answered or (control.window and control.cursor >= 0 and control.cursor or nil)
end

-- Writes the slots of a batch that there is room for. Returns their fence.
function reservation.write(index, targets, replacements)
  local count = #args.group_ids
  local fence, order = control.draw('next_fence', 1), control.draw('next_order', count)
  local slots, prompts = {}, {}
  for at, id in ipairs(args.group_ids) do
    local target, replacement = tonumber(targets[at]), replacements[at]
    slots[at] = { id = id, state = 'reserved', order = order + at - 1, fence = fence, start = args.weights[at],
      target = target, epoch = args.epoch, attempt = 1, requeues = 0, dispatch = target or index,
      replacement = replacement }
    if replacement > 0 and slots[at].dispatch then steps.add(slots[at].dispatch, 'replaced', 1) end
    if args.prompt_refs[at] ~= '' then
      prompts[#prompts + 1] = id
      prompts[#prompts + 1] = string.sub(args.prompt_refs[at], 2)
    end
  end
  listing.add(slots)
  if #prompts > 0 then redis.call('HSET', keys.prompts, unpack(prompts)) end
  redis.call('HINCRBY', keys.counters, 'reserved_total', count)
  return fence
end
