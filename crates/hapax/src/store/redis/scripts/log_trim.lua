-- Removes entries that were handed on. KEYS[1]: the partition's log.
for number = tonumber(ARGV[1]), tonumber(ARGV[2]) do redis.call('HDEL', KEYS[1], text(number)) end
return 1
