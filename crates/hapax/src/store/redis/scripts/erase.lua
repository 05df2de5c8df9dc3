-- Removes a record without a trace. Only for a store that is an unfinished copy.
redis.call('DEL', HEAD)
for _, index in ipairs({ INDEX, REFUSED }) do redis.call('ZREM', index, HEAD:sub(-ID_BYTES)) end
return 1
