-- The attempt ends: under Held.
local id, fence, state, status, retention, tombstone, publish_command, answer = unpack(ARGV)
read_clock()
refuse_if_closed()
local stored = redis.call('GET', HEAD)
local before = decode(stored)
if not before or not is_held(before, tonumber(fence)) then return lost(stored, before) end
local h = copy(before)
finish(h, tonumber(state), tonumber(status), answer and 1 or 0, retention, tombstone)
stored = write_head(id, h, before)
if answer then write_answer(h, answer) end
write_clock()
publish(publish_command)
return won(stored)
