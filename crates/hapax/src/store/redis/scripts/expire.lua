-- Removes what is over: an answer past its retention, or a record whose tombstone is over. The answer
-- goes first and the record in a later step, as in hapax_core::guard. Redis may have removed the record
-- already. Returns 2 if the record has left, 1 if only its answer.
local id = HEAD:sub(-ID_BYTES)
read_clock()
local stored = redis.call('GET', HEAD)
local h = decode(stored)
-- First a write that a full Redis does not refuse: this makes room there.
redis.call('ZREM', INDEX, id)
local has_answer = h and #stored > h.bytes
if has_answer and h.expires_at <= now then
  write(h, nil, false)
  -- So that time does not run back to when the answer counted.
  write_clock()
  return 1
end
if not h or is_gone(h) then
  redis.call('DEL', HEAD)
  redis.call('ZREM', REFUSED, id)
  if h and h.fence > floor then floor = h.fence end
  write_clock()
  return 2
end
-- The key has a new life, and its entry is of the life before.
redis.call('ZADD', INDEX, score(h, has_answer), id)
return 0
