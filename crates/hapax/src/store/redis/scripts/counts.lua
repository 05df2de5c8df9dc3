-- Keeps the number of records, as a sweep has counted them. KEYS[1]: the store.
-- First a write that a full Redis does not refuse.
redis.call('HDEL', KEYS[1], '')
redis.call('HSET', KEYS[1], 'records', ARGV[1], 'refused', ARGV[2])
return 1
