-- Removes entries of the audit log that are too old. KEYS: the store, the clock, the log.
local LOG = KEYS[3]
local kept_for, limit = tonumber(ARGV[1]), tonumber(ARGV[2])
read_clock()
local removed = 0
for _, entry in ipairs(redis.call('ZRANGE', LOG, 0, limit - 1)) do
  local at = struct.unpack('>I8', entry, 9)
  if at + kept_for > now then break end
  redis.call('ZREM', LOG, entry)
  removed = removed + 1
end
return removed
