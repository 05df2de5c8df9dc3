-- Writes an entry of another store's audit log with its number. KEYS: the store, the log, the log of
-- the record.
local sequence, entry, keep_until = tonumber(ARGV[1]), ARGV[2], ARGV[3]
if sequence <= tonumber(redis.call('HGET', KEYS[1], 'logged') or '0') then return 0 end
redis.call('ZADD', KEYS[2], sequence, entry)
if KEYS[3] then
  redis.call('ZREMRANGEBYSCORE', KEYS[3], sequence, sequence)
  redis.call('ZADD', KEYS[3], sequence, entry)
  redis.call('PEXPIREAT', KEYS[3], keep_until)
end
redis.call('HSET', KEYS[1], 'logged', sequence)
return 1
