-- Writes a record of another store as it is, unless the same or a newer version is there. Only while
-- the partition takes no writes. ARGV: head, answer.
local head, answer = unpack(ARGV)
read_clock()
if is_closed == 0 then return redis.error_reply('HAPAXOPEN this store is in use') end
local before = decode(redis.call('GET', HEAD))
local h = decode(head)
if h.fence > floor then floor = h.fence end
write_clock()
if before and before.version >= h.version then return 0 end
write(h, answer, before and is_refused(before))
return 1
