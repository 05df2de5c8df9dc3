-- Adds a batch to streams. KEYS: who publishes for this reader, then the streams. ARGV: the place of this publisher, or nothing; how streams are
-- trimmed (MAXLEN or MINID, or nothing), and to what; then for each message the number of its stream, that of its chain, how many fields and values it
-- has, and these.
--
-- Returns for each message the id of its entry, or `!` and why there is none, or nothing if an earlier one of its chain has none.
if ARGV[1] ~= '' and redis.call('GET', KEYS[1]) ~= ARGV[1] then
    return redis.error_reply('HAPAXFENCED another relay publishes')
end

-- What concerns the server as a whole.
local function is_outage(text)
    local code = string.match(text, '^-?(%u+)')
    return code == 'OOM' or code == 'READONLY' or code == 'MISCONF' or code == 'NOREPLICAS' or code == 'MASTERDOWN' or code == 'NOPERM'
        or string.find(text, '-OOM ', 1, true) or string.find(text, '-READONLY ', 1, true) or string.find(text, '-NOREPLICAS ', 1, true)
end

local trim
if ARGV[2] == 'MAXLEN' then
    trim = {'MAXLEN', ARGV[3]}
elseif ARGV[2] == 'MINID' then
    local now = redis.call('TIME')
    trim = {'MINID', string.format('%.0f', math.max(0, now[1] * 1000 + math.floor(now[2] / 1000) - ARGV[3]))}
end

local answers, is_stopped = {}, {}
local at = 4
while at <= #ARGV do
    local stream, chain, count = KEYS[1 + ARGV[at]], ARGV[at + 1], tonumber(ARGV[at + 2])
    if is_stopped[chain] then
        answers[#answers + 1] = ''
    else
        local added
        if trim then
            added = redis.pcall('XADD', stream, trim[1], '~', trim[2], '*', unpack(ARGV, at + 3, at + 2 + count))
        else
            added = redis.pcall('XADD', stream, '*', unpack(ARGV, at + 3, at + 2 + count))
        end
        if type(added) == 'table' and added.err then
            -- The relay repeats the batch.
            if is_outage(added.err) then return added end
            is_stopped[chain] = true
            answers[#answers + 1] = '!' .. added.err
        else
            answers[#answers + 1] = added
        end
    end
    at = at + 3 + count
end
return answers
