-- read: run reads together where the server has no memory left, and so queues none for a transaction.
--
-- Why atomic: a single script, and it writes nothing. May be repeated. Each read is the number of its words but
-- for the key, and these.
-- Keys: none
-- Args: words
-- Returns: each read's reply
-- Refusals: none
local replies, at = {}, 1
for number, key in ipairs(keys.payload) do
  local last = at + tonumber(args.words[at])
  replies[number] = redis.call(args.words[at + 1], key, unpack(args.words, at + 2, last))
  at = last + 1
end
return replies
