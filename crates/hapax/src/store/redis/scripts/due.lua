-- What a sweep of one partition has to look at, and how many records there are. KEYS[9]: the log.
local limit = ARGV[1]
read_clock()
local lapsed = redis.call('ZRANGEBYSCORE', LEASES, '-inf', text(now), 'WITHSCORES', 'LIMIT', 0, limit)
local ended = redis.call('ZRANGEBYSCORE', ENDS, '-inf', text(now), 'WITHSCORES', 'LIMIT', 0, limit)
local records = redis.call('ZCARD', IDS) - redis.call('ZCOUNT', ENDS, '-inf', text(now))
local refused = redis.call('ZCOUNT', REFUSED, '(' .. text(now), '+inf')
return { lapsed, ended, records, refused, redis.call('HLEN', KEYS[9]), redis.call('ZCARD', LEASES),
  redis.call('ZCOUNT', LEASES, '(' .. text(now), '+inf'), text(floor), now }
