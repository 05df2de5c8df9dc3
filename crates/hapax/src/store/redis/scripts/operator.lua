-- A change by hand: under Version. KEYS[9] has the entries of the audit log that this partition has
-- not handed on yet: the entry and the change are one step.
local LOG = KEYS[9]
local id, action, version, signed, state, status, retention, tombstone, publish_command, answer = unpack(ARGV)
read_clock()
refuse_if_closed()
local stored = redis.call('GET', HEAD)
local before = decode(stored)
if not before or before.version ~= tonumber(version) then return lost(stored, before) end
local state_before = state_now(before)
local h = copy(before)
if action == 'settle' then
  if not ((state_before == LOST or state_before == EXPIRED_UNKNOWN) and before.fingerprint ~= '') then
    return lost(stored, before)
  end
  finish(h, tonumber(state), tonumber(status), answer and 1 or 0, retention, tombstone)
else
  if state_before == RUNNING then return lost(stored, before) end
  finish(h, EXPIRED[state_before], NO_STATUS, 0, 0, tombstone)
  -- Forgetting a record must not let its request run again sooner.
  if before.tombstone_until > h.tombstone_until then h.tombstone_until = before.tombstone_until end
  h.fingerprint, h.request_id = '', ''
end
h.fence = mint(before.fence)
redis.call('DEL', ANSWER)
stored = write_head(id, h, before)
if answer then write_answer(h, answer) end
write_clock()
local logged = copy(h)
logged.fingerprint, logged.request_id = '', ''
local number = redis.call('HINCRBY', LOG, 'count', 1)
redis.call('HSET', LOG, text(number), struct.pack('>I8BBH', now, action == 'forget' and 1 or 0, state_before, #signed)
  .. signed .. id .. encode(logged))
publish(publish_command)
return won(stored)
