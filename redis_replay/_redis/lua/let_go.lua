-- let_go: have done with groups that were selected for good: the collector may free their rows.
--
-- Why atomic: if this session does not read one of them, none is let go.
-- Keys: meta selected dead sessions owners events
-- Args: group_ids
-- Returns: groups let go
-- Refusals: UNKNOWN
-- include: session
-- include: selected
local refusal = session.open()
if refusal then return refusal end
local selections, named, known = selected.of(args.epoch), {}, {}
for _, items in pairs(selections) do
  for at = 2, #items, 2 do
    known[items[at]] = true
  end
end
for _, id in ipairs(args.group_ids) do
  if not known[id] then return control.head('UNKNOWN', id) end
  named[id] = true
end
selected.let_go(selections, named)
return session.close('let_go', args.group_ids, text.whole(#args.group_ids))
