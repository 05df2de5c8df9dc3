-- One record as of now. KEYS: head, answer, clock. Without the answer if ARGV[1] is '0'.
read_clock()
local stored = redis.call('GET', HEAD)
if ARGV[1] == '0' or not stored then return { 0, now, stored, false } end
return { 0, now, stored, answer_of(decode(stored)) }
