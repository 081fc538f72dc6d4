-- session: the frame of a mutation by an attached session.
--
-- A call is numbered before its first attempt and keeps its number, so a repeated call after a lost
-- reply gets the first answer and changes nothing. An expired session is refused.
-- Keys: sessions
-- Refusals: REUSED EXPIRED
-- include: owner
local session = {}

local WINDOW = 16

local function window_field()
  return text.whole(args.epoch) .. ':' .. text.whole(args.call % WINDOW)
end

function session.open()
  local refusal = control.open()
  if refusal then return refusal end
  local kept = redis.call('HGET', keys.sessions, window_field())
  if kept then
    local call, digest = unpack(text.unpack(kept, 2))
    call = tonumber(call)
    if call > args.call then return control.head('EXPIRED', text.whole(call)) end
    if call == args.call and digest ~= args.digest then return control.head('REUSED') end
    if call == args.call then return { unpack(text.unpack(kept), 3) } end
  end
  return owner.fenced()
end

-- Keeps a reply for a repetition of the same call, and returns it.
function session.keep(...)
  local answer = control.head('OK', ...)
  redis.call('HSET', keys.sessions, window_field(), text.pack({ text.whole(args.call), args.digest, unpack(answer) }))
  return answer
end

-- Closes the mutation and keeps its reply.
function session.close(kind, subjects, ...)
  control.close(kind, subjects, args.owner)
  return session.keep(...)
end
