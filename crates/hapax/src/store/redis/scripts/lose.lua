-- The lease is over and the attempt did not end: under Lapsed. A sweep gives no fence: it takes the
-- one that is there.
local fence, retention, tombstone, publish_command = unpack(ARGV)
read_clock()
refuse_if_closed()
local stored = redis.call('GET', HEAD)
local h = decode(stored)
if not h then
  -- Only an operator of Redis deletes a running record. Its lease goes with it.
  if fence == '' then redis.call('ZREM', INDEX, HEAD:sub(-ID_BYTES)) end
  return found(stored, h)
end
if h.state ~= RUNNING or not is_over(h, fence == '' and h.fence or tonumber(fence)) then return found(stored, h) end
finish(h, LOST, NO_STATUS, 0, tonumber(retention), tonumber(tombstone))
write_though_full()
local head = write(h, nil, false)
write_clock()
publish(publish_command)
return won(head)
