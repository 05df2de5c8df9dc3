-- An action by hand that changes no record. KEYS: the store, the clock, the log.
local STORE, LOG = KEYS[1], KEYS[3]
read_clock()
local sequence = redis.call('HINCRBY', STORE, 'logged', 1)
redis.call('ZADD', LOG, sequence, struct.pack('>I8I8BBH', sequence, now, 2, 0, #ARGV[1]) .. ARGV[1])
write_clock()
return { sequence, now }
