-- Opens or closes a partition for writes, and raises its clock and its floor. KEYS[2]: the clock.
local close, time, fence = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
read_clock()
if time > now then now = time end
if fence > floor then floor = fence end
is_closed = tonumber(close)
write_though_full()
write_clock()
return 1
