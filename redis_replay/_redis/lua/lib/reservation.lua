-- reservation: gives places in the buffer to new groups, all or none.
--
-- Keys: meta slots prompts reserved ready claimed counters admissions
-- Args: group_ids weights targets prompt_refs
-- Refusals: DUPLICATE FULL FULL_BYTES
-- include: listing
-- include: admission
local reservation = {}

function reservation.check()
  local limits = redis.call('HMGET', keys.meta, 'capacity', 'max_payload_bytes')
  local taken = redis.call('ZCARD', keys.reserved) + redis.call('ZCARD', keys.ready) + redis.call('ZCARD', keys.claimed)
  for _, id in ipairs(args.group_ids) do
    if redis.call('HEXISTS', keys.slots, id) == 1 then return control.head('DUPLICATE', id) end
  end
  if taken + #args.group_ids > tonumber(limits[1]) then
    return control.head('FULL', limits[1], text.whole(taken), text.whole(#args.group_ids))
  end
  local bytes = redis.call('HGET', keys.counters, 'payload_bytes') or '0'
  if limits[2] and limits[2] ~= '' and tonumber(bytes) >= tonumber(limits[2]) then
    return control.head('FULL_BYTES', limits[2], bytes)
  end
end

-- Writes the slots that `check` let pass, for a cut those of its own admission. Returns the one fence they share.
function reservation.write(admitted)
  local count = #args.group_ids
  local fence, order = control.draw('next_fence', 1), control.draw('next_order', count)
  local slots, prompts, targets = {}, {}, {}
  for at, id in ipairs(args.group_ids) do
    slots[at] = { id = id, state = 'reserved', order = order + at - 1, fence = fence, start = args.weights[at],
      target = tonumber(args.targets[at]), epoch = args.epoch, attempt = 1, requeues = 0 }
    targets[args.targets[at]] = true
    if args.prompt_refs[at] ~= '' then
      prompts[#prompts + 1] = id
      prompts[#prompts + 1] = string.sub(args.prompt_refs[at], 2)
    end
  end
  listing.add(slots)
  if #prompts > 0 then redis.call('HSET', keys.prompts, unpack(prompts)) end
  redis.call('HINCRBY', keys.counters, 'reserved_total', count)
  if redis.call('HLEN', keys.admissions) > 0 then admission.answer(targets, admitted) end
  return fence
end
