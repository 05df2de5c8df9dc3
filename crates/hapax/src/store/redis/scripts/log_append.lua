-- Hands entries of a partition on to the audit log and numbers them. KEYS: the store, the log, and
-- the logs of the records, one for each entry. Entries that were handed on already are left out, so
-- that two nodes may do this at once. A `forget` raises the epoch here.
local STORE, LOG = KEYS[1], KEYS[2]
local partition, keep_until = ARGV[1], ARGV[2]
local moved = tonumber(redis.call('HGET', STORE, 'moved:' .. partition) or '0')
local at = 3
-- First a write that a full Redis does not refuse.
redis.call('HDEL', STORE, '')
for key = 3, #KEYS do
  local number, is_forget, entry = tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2]
  at = at + 3
  if number > moved then
    local sequence = redis.call('HINCRBY', STORE, 'logged', 1)
    redis.call('ZADD', LOG, sequence, struct.pack('>I8', sequence) .. entry)
    redis.call('ZADD', KEYS[key], sequence, struct.pack('>I8', sequence) .. entry)
    redis.call('PEXPIREAT', KEYS[key], keep_until)
    if is_forget == '1' then redis.call('HINCRBY', STORE, 'epoch', 1) end
    moved = number
  end
end
redis.call('HSET', STORE, 'moved:' .. partition, moved)
return moved
