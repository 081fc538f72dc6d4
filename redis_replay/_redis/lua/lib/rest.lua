-- rest: what a slot that a checkpoint has kept becomes, since nobody holds it any more.
--
-- A finished group is ready again; an unfinished one becomes a redispatch ticket, and so does a finished one whose
-- rows are not wanted or damaged; a quarantined one stays so.
-- Keys: none
local rest = {}

function rest.settle(found, rows_wanted, fence)
  local finished = found.payload_fence and rows_wanted
  if not finished then found.payload_fence, found.finish, found.bytes = nil, nil, nil end
  if found.state == 'quarantined' then return end
  if not finished or found.state == 'claimed' then found.fence = fence end
  found.state = finished and 'ready' or 'reserved'
  found.epoch, found.batch, found.written = nil, nil, nil
end
