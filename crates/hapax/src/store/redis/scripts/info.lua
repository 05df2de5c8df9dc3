-- The values of the store as a whole. KEYS: the store, the clock, the log. The first call of
-- all gives the store its secret.
local STORE = KEYS[1]
local secret = ARGV[1]
read_clock()
-- First a write that a full Redis does not refuse.
redis.call('HDEL', STORE, '')
if redis.call('HSETNX', STORE, 'secret', secret) == 1 then
  redis.call('HSET', STORE, 'lives_since', '0', 'epoch', 0, 'logged', 0, 'format', 2)
end
write_clock()
local found = redis.call('HMGET', STORE, 'secret', 'lives_since', 'epoch', 'logged', 'records', 'refused', 'format')
found[#found + 1] = now
return found
