-- remove: take named groups out of the buffer, all or none.
--
-- Why atomic: if one of them is claimed or not live, none is removed.
-- Keys: meta slots prompts reserved ready quarantined reserved_by_step ready_by_step ready_by_order
--   reserved_by_owner tickets counters ends dead steps sessions owners events
-- Args: reason group_ids
-- States: reserved ready quarantined -> removed
-- Returns: groups removed
-- Refusals: UNKNOWN STATE
-- include: session
-- include: retire
local refusal = session.open()
if refusal then return refusal end
local slots, unfit = slot.load(args.group_ids, 'reserved ready quarantined')
if not slots then return unfit end
retire.groups(slots, 'removed', args.reason)
return session.close('remove', args.group_ids, text.whole(#slots))
