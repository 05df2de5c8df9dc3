-- What a sweep of one partition has to look at, and how many records there are. KEYS[5]: the log.
local limit = ARGV[1]
read_clock()
local lapsed = redis.call('ZRANGEBYSCORE', INDEX, 1, now, 'WITHSCORES', 'LIMIT', 0, limit)
local ended = redis.call('ZREVRANGEBYSCORE', INDEX, '(0', -now, 'WITHSCORES', 'LIMIT', 0, limit)
local refused = redis.call('ZCOUNT', REFUSED, '(' .. text(now), '+inf')
return { lapsed, ended, redis.call('ZCARD', INDEX), refused, redis.call('HLEN', KEYS[5]), redis.call('ZCOUNT', INDEX, 1, '+inf'),
  redis.call('ZCOUNT', INDEX, '(' .. text(now), '+inf'), text(floor) }
