-- Shared by all scripts: the clock, the layout of a head, and the rules of hapax_core::guard.
--
-- KEYS of every script that changes a record, all in one slot:
local HEAD, ANSWER, CLOCK, IDS, LEASES, ENDS, UNKNOWN, REFUSED =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]

-- Redis 6 replicates the text of a script unless told to replicate its writes.
if redis.replicate_commands then redis.replicate_commands() end

-- The numbers of states, as in store/codec.rs.
local RUNNING, COMPLETED, FAILED, RETRYABLE, LOST = 1, 2, 3, 4, 5
local EXPIRED_UNKNOWN = 13
-- What a state becomes when its retention is over.
local EXPIRED = { [1] = 13, [2] = 10, [3] = 11, [4] = 12, [5] = 13, [10] = 10, [11] = 11, [12] = 12, [13] = 13 }

local NO_STATUS = 4294967295
-- A sweep removes a record whose tombstone is over. If nobody sweeps, Redis does it a day later, in
-- milliseconds: longer than a copy takes, which counts the records first.
local UNSWEPT_FOR = 86400000
local REFUSED_FOR = 600 * 1000000
-- The largest whole number that Lua can count with. Times stop there, in the year 2255.
local LAST = 9007199254740991

local function later(time, duration)
  local sum = time + tonumber(duration)
  if sum > LAST then return LAST end
  return sum
end

local function text(number) return string.format('%.0f', number) end

-- The partition's clock, the highest fence it has minted, and whether it takes writes. The clock of
-- the server may be set back, and a replica's may be behind: time never runs back for a partition.
local now, floor, is_closed
local function read_clock()
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
  local kept = redis.call('GET', CLOCK)
  floor, is_closed = 0, 0
  if kept then
    local clock
    clock, floor, is_closed = struct.unpack('>I8I8B', kept)
    if clock > now then now = clock end
  end
end
local function write_clock()
  redis.call('SET', CLOCK, struct.pack('>I8I8B', now, floor, is_closed))
end

local LAYOUT = '>BBI8I8I4I8I8I8I8I8I8I4Bc16HH'

local function decode(stored)
  if not stored then return nil end
  if stored:byte(1) ~= 1 then error('HAPAXFORMAT a record was written by a newer version', 0) end
  local h, at, fingerprint_len, request_id_len, _ = {}
  _, h.state, h.fence, h.version, h.attempts, h.lease_until, h.created_at, h.claimed_at, h.finished_at, h.expires_at,
    h.tombstone_until, h.status, h.kept, h.token, fingerprint_len, request_id_len, at = struct.unpack(LAYOUT, stored)
  h.fingerprint = stored:sub(at, at + fingerprint_len - 1)
  at = at + fingerprint_len
  h.request_id = stored:sub(at, at + request_id_len - 1)
  h.identity = stored:sub(at + request_id_len)
  return h
end

local function encode(h)
  return struct.pack(LAYOUT, 1, h.state, h.fence, h.version, h.attempts, h.lease_until, h.created_at, h.claimed_at,
    h.finished_at, h.expires_at, h.tombstone_until, h.status, h.kept, h.token, #h.fingerprint, #h.request_id)
    .. h.fingerprint .. h.request_id .. h.identity
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
local function is_held(h, fence) return h.fence == fence and is_open(h.state) and h.fingerprint ~= '' end
local function is_over(h, fence)
  if h.fence ~= fence then return false end
  if h.state == RUNNING then return h.lease_until <= now end
  return (h.state == LOST or h.state == RETRYABLE) and h.expires_at > now
end
local function is_refused(h)
  return h.state == RETRYABLE and (h.status == 401 or h.status == 403) and h.finished_at ~= 0
    and h.tombstone_until == h.expires_at and h.expires_at <= h.finished_at + REFUSED_FOR
end

-- A new fence, above every earlier one of this partition. It becomes the floor.
local function mint(previous)
  local fence = now
  if previous >= fence then fence = previous + 1 end
  if floor >= fence then fence = floor + 1 end
  floor = fence
  return fence
end

-- Writes a head and keeps the indexes true. A head with a known end leaves by itself after its
-- tombstone, an open one never.
local function write_head(id, h, before)
  if before then
    if before.state == RUNNING then
      if h.state ~= RUNNING then redis.call('ZREM', LEASES, id) end
    elseif is_open(before.state) then
      if h.state == RUNNING or not is_open(h.state) then redis.call('ZREM', UNKNOWN, id) end
    else
      redis.call('ZREM', ENDS, id)
      if is_refused(before) then redis.call('ZREM', REFUSED, id) end
    end
  else
    redis.call('ZADD', IDS, 0, id)
  end
  local stored = encode(h)
  if h.state == RUNNING then
    redis.call('SET', HEAD, stored)
    redis.call('ZADD', LEASES, text(h.lease_until), id)
  elseif is_open(h.state) then
    redis.call('SET', HEAD, stored)
    redis.call('ZADD', UNKNOWN, 0, id)
  else
    redis.call('SET', HEAD, stored, 'PXAT', text(math.floor(h.tombstone_until / 1000) + UNSWEPT_FOR))
    redis.call('ZADD', ENDS, text(h.tombstone_until), id)
    if is_refused(h) then redis.call('ZADD', REFUSED, text(h.tombstone_until), id) end
  end
  return stored
end

local function write_answer(h, answer)
  redis.call('SET', ANSWER, answer, 'PXAT', text(math.floor(h.expires_at / 1000) + 1))
end

-- The head after the attempt has ended.
local function finish(h, state, status, kept, retention, tombstone)
  h.state, h.status, h.kept = state, status, kept
  h.version = h.version + 1
  h.finished_at = now
  h.expires_at = later(now, retention)
  h.tombstone_until = later(h.expires_at, tombstone)
end

local function answer_of(h)
  if h and h.kept == 1 and h.expires_at > now then return redis.call('GET', ANSWER) end
  return false
end

local function refuse_if_closed()
  if is_closed ~= 0 then error('HAPAXCLOSED this store takes no writes: it is being copied, or was moved', 0) end
end

local function copy(h)
  local copied = {}
  for name, value in pairs(h) do copied[name] = value end
  return copied
end

local function lost(stored, h) return { 0, now, stored or false, answer_of(h) } end
local function won(stored) return { 1, now, stored, false } end

-- Wakes who waits for this record on other nodes. The poll is the net below it. It must not fail a
-- script that has written: a user may lack the right to publish.
local function publish(command) redis.pcall(command, HEAD, '') end
