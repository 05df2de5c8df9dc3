-- Removes what a tombstone that is over has left: the head, if Redis has not removed it, and the
-- entries of the indexes.
local id = ARGV[1]
read_clock()
local before = decode(redis.call('GET', HEAD))
if before and not is_gone(before) then
  -- The key has a new life, and its entry is of the life before.
  if is_open(before.state) then
    redis.call('ZREM', ENDS, id)
  else
    redis.call('ZADD', ENDS, text(before.tombstone_until), id)
  end
  return 0
end
redis.call('DEL', HEAD, ANSWER)
redis.call('ZREM', ENDS, id)
redis.call('ZREM', REFUSED, id)
return redis.call('ZREM', IDS, id)
