-- Shared by all scripts: the clock, the layout of a record, and the rules of hapax_core::guard.
--
-- KEYS of every script that changes a record, all in one slot. The id of a record is at the end of
-- the name of its head.
local HEAD, CLOCK, INDEX, REFUSED = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local ID_BYTES = 32

-- Redis 6 replicates the text of a script unless told to replicate its writes.
if redis.replicate_commands then redis.replicate_commands() end

-- The numbers of states, as in store/codec.rs.
local RUNNING, COMPLETED, FAILED, RETRYABLE, LOST = 1, 2, 3, 4, 5
local EXPIRED_UNKNOWN = 13
-- What a state becomes when its retention is over.
local EXPIRED = { [1] = 13, [2] = 10, [3] = 11, [4] = 12, [5] = 13, [10] = 10, [11] = 11, [12] = 12, [13] = 13 }

local NO_STATUS = 4294967295
-- A sweep removes a record whose tombstone is over. If nobody sweeps, Redis does it a week later, in
-- milliseconds: longer than a copy takes, which counts the records first.
local UNSWEPT_FOR = 604800000
local REFUSED_FOR = 600 * 1000000
-- The largest whole number that Lua can count with. Times stop there, in the year 2255.
local LAST = 9007199254740991

local function later(time, duration)
  local sum = time + duration
  if sum > LAST then return LAST end
  return sum
end

local function text(number) return string.format('%.0f', number) end

-- The partition's clock, a fence that every new one is above, and whether it takes writes. The clock
-- of the server may be set back, and a replica's may be behind: time does not run back for a
-- partition, but for the little that its clock is written late.
local CLOCK_WRITTEN_EVERY = 20000
local now, floor, is_closed, clock
local server_time
local function use_clock(kept)
  if not server_time then
    local time = redis.call('TIME')
    server_time = time[1] * 1000000 + time[2]
  end
  now, clock, floor, is_closed = server_time, 0, 0, 0
  if kept then
    clock, floor, is_closed = struct.unpack('>I8I8B', kept)
    if clock > now then now = clock end
  end
end
local function read_clock() use_clock(redis.call('GET', CLOCK)) end
local function write_clock() redis.call('SET', CLOCK, struct.pack('>I8I8B', now, floor, is_closed)) end
local function keep_clock()
  if now - clock >= CLOCK_WRITTEN_EVERY then write_clock() end
end

-- A head, and after it the answer if one is kept. In this order: what the end of an attempt changes;
-- what its beginning changes; the rest, which starts at REST.
local FORMAT = 2
local LAYOUT = '>BBI8I8I8I8I4BI8I8I8I8I4'
local REST = 76
-- The rest: token, three lengths, fingerprint, request id, identity.
local REST_LAYOUT = '>c16HHI4'
local REST_BYTES = 24

local function decode(stored)
  if not stored then return nil end
  if stored:byte(1) ~= FORMAT then error('HAPAXFORMAT a record was written by another version', 0) end
  local h, fingerprint_len, request_id_len, identity_len, _ = {}
  _, h.state, h.version, h.finished_at, h.expires_at, h.tombstone_until, h.status, h.kept, h.fence, h.lease_until,
    h.claimed_at, h.created_at, h.attempts, h.token, fingerprint_len, request_id_len, identity_len =
    struct.unpack(LAYOUT .. 'c16HHI4', stored)
  h.bytes = REST - 1 + REST_BYTES + fingerprint_len + request_id_len + identity_len
  h.rest = stored:sub(REST, h.bytes)
  h.has_fingerprint = fingerprint_len > 0
  return h
end

local function encode(h)
  return struct.pack(LAYOUT, FORMAT, h.state, h.version, h.finished_at, h.expires_at, h.tombstone_until, h.status, h.kept,
    h.fence, h.lease_until, h.claimed_at, h.created_at, h.attempts) .. h.rest
end

-- The parts of the rest of a head: token, fingerprint, request id, identity.
local function split(rest)
  local token, fingerprint_len, request_id_len = struct.unpack(REST_LAYOUT, rest)
  local at = REST_BYTES + fingerprint_len
  return token, rest:sub(REST_BYTES + 1, at), rest:sub(at + 1, at + request_id_len), rest:sub(at + request_id_len + 1)
end

local function join(token, fingerprint, request_id, identity)
  return struct.pack(REST_LAYOUT, token, #fingerprint, #request_id, #identity) .. fingerprint .. request_id .. identity
end

local function state_now(h)
  if h.state == RUNNING then
    if h.lease_until <= now then return LOST end
    return RUNNING
  end
  if h.expires_at <= now then return EXPIRED[h.state] end
  return h.state
end

-- No known end: never removed by time alone.
local function is_open(state) return state == RUNNING or state == LOST or state == EXPIRED_UNKNOWN end
local function is_gone(h) return not is_open(state_now(h)) and h.tombstone_until <= now end
local function is_held(h, fence) return h.fence == fence and is_open(h.state) and h.has_fingerprint end
local function is_over(h, fence)
  if h.fence ~= fence then return false end
  if h.state == RUNNING then return h.lease_until <= now end
  return (h.state == LOST or h.state == RETRYABLE) and h.expires_at > now
end
local function is_refused(h)
  return h.state == RETRYABLE and (h.status == 401 or h.status == 403) and h.finished_at ~= 0
    and h.tombstone_until == h.expires_at and h.expires_at <= h.finished_at + REFUSED_FOR
end

-- A new fence, above every earlier one of this record.
local function mint(previous)
  local fence = now
  if previous >= fence then fence = previous + 1 end
  if floor >= fence then fence = floor + 1 end
  return fence
end

-- The score of a record in the index. Running: the end of its lease. Unknown: zero. All others, with
-- a minus: when the next thing becomes due, which is the end of the answer, or of the tombstone.
local function score(h, has_answer)
  -- The lease of a copied record is over since ever, which is not zero: that is unknown.
  if h.state == RUNNING then return math.max(h.lease_until, 1) end
  if is_open(h.state) then return 0 end
  return -(has_answer and h.expires_at or h.tombstone_until)
end

-- Writes a head with its answer, and the index. One with a known end leaves by itself after its
-- tombstone, an open one never.
local function write(h, answer, was_refused)
  local head = encode(h)
  local id = HEAD:sub(-ID_BYTES)
  local stored = answer and head .. answer or head
  redis.call('ZADD', INDEX, score(h, answer), id)
  if is_open(h.state) then
    redis.call('SET', HEAD, stored)
  else
    redis.call('SET', HEAD, stored, 'PXAT', math.floor(h.tombstone_until / 1000) + UNSWEPT_FOR)
  end
  if is_refused(h) then
    redis.call('ZADD', REFUSED, h.tombstone_until, id)
  elseif was_refused then
    redis.call('ZREM', REFUSED, id)
  end
  return head
end

-- The head after the attempt has ended.
local function finish(h, state, status, kept, retention, tombstone)
  h.state, h.status, h.kept = state, status, kept
  h.version = h.version + 1
  h.finished_at = now
  h.expires_at = later(now, retention)
  h.tombstone_until = later(h.expires_at, tombstone)
end

local function refuse_if_closed()
  if is_closed ~= 0 then error('HAPAXCLOSED this store takes no writes: it is being copied, or was moved', 0) end
end

-- A script that has written once is not refused by a full Redis. Ends, renewals, sweeps and changes by
-- hand have to work there: they begin with a write that changes nothing, and that Redis never refuses.
local function write_though_full() redis.call('ZREM', REFUSED, '') end

-- The reply about a record: won or not, the time, the head, and with it the answer if there is one
-- that counts.
local function found(stored, h)
  if h and not (h.kept == 1 and h.expires_at > now) then stored = stored:sub(1, h.bytes) end
  return { 0, now, stored }
end
local function won(head) return { 1, now, head } end

-- Wakes who waits for this record on other nodes. The poll is the net below it. It must not fail a
-- script that has written: a user may lack the right to publish.
local function publish(command) redis.pcall(command, HEAD, '') end
