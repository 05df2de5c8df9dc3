-- Whether a principal is remembered now. KEYS: the principal, the clock.
read_clock()
local known = redis.call('GET', KEYS[1])
return known and tonumber(known) > now and 1 or 0
