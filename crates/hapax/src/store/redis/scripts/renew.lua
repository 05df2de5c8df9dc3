-- A running attempt that owns its fence keeps its lease.
local fence, lease = unpack(ARGV)
read_clock()
refuse_if_closed()
local h = decode(redis.call('GET', HEAD))
if not h or h.state ~= RUNNING or h.fence ~= tonumber(fence) then return 0 end
h.lease_until, h.version = later(now, tonumber(lease)), h.version + 1
write_though_full()
write(h, nil, false)
write_clock()
return 1
