-- A change by hand: under Version. KEYS[5] has the entries of the audit log that this partition has
-- not handed on yet: the entry and the change are one step.
local LOG = KEYS[5]
local action, version, signed, state, status, retention, tombstone, publish_command, answer = unpack(ARGV)
read_clock()
refuse_if_closed()
local stored = redis.call('GET', HEAD)
local h = decode(stored)
if not h or h.version ~= tonumber(version) then return found(stored, h) end
local state_before, was_refused, tombstone_before = state_now(h), is_refused(h), h.tombstone_until
local token, _, _, identity = split(h.rest)
local without_traces = join(token, '', '', identity)
if action == 'settle' then
  if not ((state_before == LOST or state_before == EXPIRED_UNKNOWN) and h.has_fingerprint) then return found(stored, h) end
  finish(h, tonumber(state), tonumber(status), answer and 1 or 0, tonumber(retention), tonumber(tombstone))
else
  if state_before == RUNNING then return found(stored, h) end
  finish(h, EXPIRED[state_before], NO_STATUS, 0, 0, tonumber(tombstone))
  -- Forgetting a record must not let its request run again sooner.
  if tombstone_before > h.tombstone_until then h.tombstone_until = tombstone_before end
  h.rest = without_traces
end
h.fence = mint(h.fence)
write_though_full()
local head = write(h, answer, was_refused)
write_clock()
h.rest = without_traces
local number = redis.call('HINCRBY', LOG, 'count', 1)
redis.call('HSET', LOG, text(number), struct.pack('>I8BBH', now, action == 'forget' and 1 or 0, state_before, #signed)
  .. signed .. HEAD:sub(-ID_BYTES) .. encode(h))
publish(publish_command)
return won(head)
