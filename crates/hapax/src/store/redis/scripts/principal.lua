-- Remembers a principal until a time; the later time counts. KEYS[1]: the principal.
local known = redis.call('GET', KEYS[1])
local ends = ARGV[1]
if known and tonumber(known) >= tonumber(ends) then return 0 end
redis.call('SET', KEYS[1], ends, 'PXAT', text(math.floor(tonumber(ends) / 1000) + 1))
return 1
