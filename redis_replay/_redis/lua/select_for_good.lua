-- select_for_good: take the ready groups that a policy's rule picks, or named ones, to be trained without a claim.
--
-- Why atomic: groups are picked and end in one step, so no two trainers share one. Nothing gives them back; what
-- the session has of them is their rows, until it lets them go or ends (D51).
-- Keys: meta slots prompts reserved ready ready_by_step ready_by_order groups selected counters ends steps
--   dead sessions owners events
-- Args: rule lowest highest minimum maximum policy group_ids
-- States: ready -> trained
-- Returns: the selection's number, the number of groups, each one's id and last record, then each one's immutable
--   record (not when repeated); nothing when fewer than minimum
-- Refusals: POLICY UNKNOWN STATE CORRUPT TOO_MANY
-- include: session
-- include: policy
-- include: pick
-- include: taking
-- include: selected
local refusal = session.open()
if refusal then return refusal end
refusal = policy.check()
if refusal then return refusal end
local slots, unfit
if args.rule == '' then
  slots, unfit = slot.load(args.group_ids, 'ready')
else
  local members = pick[args.rule]()
  if #members < args.minimum then return control.head('OK') end
  slots, unfit = slot.load_listed(members, 'ready')
end
if not slots then return unfit end
refusal = selected.check_room(args.epoch, #slots)
if refusal then return refusal end

local number, items, ids, entries = control.draw('next_fence', 1), slot.items(slots), {}, {}
for at, found in ipairs(slots) do
  ids[at], entries[at] = found.id, retire.payload_of(found)
end
selected.keep(number, args.epoch, items)
retire.groups(slots, 'trained', 'selected', true)
steps.train(#slots)
local answer = session.close('select_for_good', ids, text.whole(number), text.whole(#slots), unpack(items))
return taking.describe(answer, entries)
