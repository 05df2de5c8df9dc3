-- Removes a record without a trace. Only for a store that is an unfinished copy.
redis.call('DEL', HEAD, ANSWER)
for _, index in ipairs({ IDS, LEASES, ENDS, UNKNOWN, REFUSED }) do redis.call('ZREM', index, ARGV[1]) end
return 1
