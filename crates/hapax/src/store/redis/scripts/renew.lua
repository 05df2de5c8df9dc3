-- A running attempt that owns its fence keeps its lease.
local id, fence, lease = unpack(ARGV)
read_clock()
refuse_if_closed()
local before = decode(redis.call('GET', HEAD))
if not before or before.state ~= RUNNING or before.fence ~= tonumber(fence) then return 0 end
local h = copy(before)
-- First a write that a full Redis does not refuse, so that it refuses none of the others.
redis.call('ZREM', LEASES, id)
h.lease_until, h.version = later(now, lease), before.version + 1
write_head(id, h, before)
write_clock()
return 1
