-- The lease is over and the attempt did not end: under Lapsed. A sweep gives no fence: it takes the
-- one that is there.
local id, fence, retention, tombstone, publish_command = unpack(ARGV)
read_clock()
refuse_if_closed()
local stored = redis.call('GET', HEAD)
local before = decode(stored)
if not before then
  -- Only an operator of Redis deletes a running record. Its lease goes with it.
  if fence == '' then redis.call('ZREM', LEASES, id) end
  return lost(stored, before)
end
if before.state ~= RUNNING or not is_over(before, fence == '' and before.fence or tonumber(fence)) then
  return lost(stored, before)
end
local h = copy(before)
finish(h, LOST, NO_STATUS, 0, retention, tombstone)
stored = write_head(id, h, before)
write_clock()
publish(publish_command)
return won(stored)
