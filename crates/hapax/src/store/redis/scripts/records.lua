-- Reads, claims or ends of several records, each by itself. A call that fails does not touch the
-- others: its error is its reply. KEYS: four for each. ARGV: the command that publishes, a fence that
-- new ones must be above, then two for each: what to do with its numbers, and bytes.
local PUBLISH, SEEN_FENCE = ARGV[1], tonumber(ARGV[2])

-- As of now; with the answer, if the number is one.
local function read(stored, arguments)
  if not stored then return { 0, now, false } end
  local h = decode(stored)
  if arguments:byte(2) == 0 then return { 0, now, stored:sub(1, h.bytes) } end
  return found(stored, h)
end

-- A new attempt: under Lapsed, with the fence of the attempt before, or under Absent.
local function claim(stored, arguments, rest)
  refuse_if_closed()
  local _, is_takeover, after, lease, open_max = struct.unpack('>BBI8I8I8', arguments)
  local before = decode(stored)
  if SEEN_FENCE > floor then floor = SEEN_FENCE end
  local h
  if is_takeover == 0 then
    if before and not is_gone(before) then return found(stored, before) end
    if redis.call('ZCOUNT', INDEX, 0, '+inf') >= open_max then
      return redis.error_reply('HAPAXFULL too many records are running or unknown')
    end
    local fence = mint(before and before.fence or 0)
    local version = fence
    if before and before.version >= version then version = before.version + 1 end
    h = {
      state = RUNNING, version = version, finished_at = 0, expires_at = 0, tombstone_until = 0, status = NO_STATUS, kept = 0,
      fence = fence, lease_until = later(now, lease), claimed_at = now, created_at = now, attempts = 1, rest = rest,
    }
  else
    if not before or not is_over(before, after) then return found(stored, before) end
    local token, _, request_id = split(rest)
    local _, fingerprint, _, identity = split(before.rest)
    h = {
      state = RUNNING, version = before.version + 1, finished_at = before.finished_at, expires_at = before.expires_at,
      tombstone_until = before.tombstone_until, status = NO_STATUS, kept = 0, fence = mint(before.fence),
      lease_until = later(now, lease), claimed_at = now, created_at = before.created_at, attempts = before.attempts + 1,
      rest = join(token, fingerprint, request_id, identity),
    }
  end
  local head = write(h, nil, before and is_refused(before))
  keep_clock()
  return won(head)
end

-- The attempt ends: under Held.
local function complete(stored, arguments, answer)
  refuse_if_closed()
  local _, fence, state, status, retention, tombstone = struct.unpack('>BI8BI4I8I8', arguments)
  local h = decode(stored)
  if not h or not is_held(h, fence) then return found(stored, h) end
  if answer == '' then answer = nil end
  finish(h, state, status, answer and 1 or 0, retention, tombstone)
  write_though_full()
  local head = write(h, answer, false)
  keep_clock()
  publish(PUBLISH)
  return won(head)
end

local ACTIONS = { [0] = read, [1] = claim, [2] = complete }

local function call(number)
  local values = redis.call('MGET', HEAD, CLOCK)
  use_clock(values[2])
  local arguments = ARGV[2 * number + 1]
  return ACTIONS[arguments:byte(1)](values[1], arguments, ARGV[2 * number + 2])
end

local replies = {}
for number = 1, #KEYS / 4 do
  local at = 4 * number
  HEAD, CLOCK, INDEX, REFUSED = KEYS[at - 3], KEYS[at - 2], KEYS[at - 1], KEYS[at]
  local is_done, reply = pcall(call, number)
  if not is_done and type(reply) ~= 'table' then reply = redis.error_reply(reply) end
  replies[number] = reply
end
return replies
