-- Changes the standing of the store if it is as it was read. KEYS[1]: the store. ARGV: the fields of
-- the standing as read, then their new values, then further fields and values.
local FIELDS = { 'standing', 'copy', 'other', 'record', 'entry' }
local found = redis.call('HMGET', KEYS[1], unpack(FIELDS))
for number = 1, #FIELDS do
  if (found[number] or '') ~= ARGV[number] then return 0 end
end
for number = 1, #FIELDS do redis.call('HSET', KEYS[1], FIELDS[number], ARGV[#FIELDS + number]) end
for at = 2 * #FIELDS + 1, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1]) end
return 1
