-- A new attempt: under Absent, or under Lapsed if the fence of the attempt before is given.
local id, after, lease, token, fingerprint, request_id, identity, seen_fence, open_max = unpack(ARGV)
read_clock()
refuse_if_closed()
local stored = redis.call('GET', HEAD)
local before = decode(stored)
if tonumber(seen_fence) > floor then floor = tonumber(seen_fence) end
local h
if after == '' then
  if before and not is_gone(before) then return lost(stored, before) end
  if redis.call('ZCARD', LEASES) + redis.call('ZCARD', UNKNOWN) >= tonumber(open_max) then
    return redis.error_reply('HAPAXFULL too many records are running or unknown')
  end
  local fence = mint(before and before.fence or 0)
  local version = fence
  if before and before.version >= version then version = before.version + 1 end
  h = {
    state = RUNNING, fence = fence, version = version, attempts = 1, lease_until = later(now, lease),
    created_at = now, claimed_at = now, finished_at = 0, expires_at = 0, tombstone_until = 0,
    status = NO_STATUS, kept = 0, token = token, fingerprint = fingerprint, request_id = request_id, identity = identity,
  }
else
  if not before or not is_over(before, tonumber(after)) then return lost(stored, before) end
  h = copy(before)
  h.state, h.fence, h.token = RUNNING, mint(before.fence), token
  h.version, h.attempts = before.version + 1, before.attempts + 1
  h.lease_until, h.claimed_at = later(now, lease), now
  h.status, h.kept, h.request_id = NO_STATUS, 0, request_id
end
if before and before.kept == 1 then redis.call('DEL', ANSWER) end
stored = write_head(id, h, before)
write_clock()
return won(stored)
