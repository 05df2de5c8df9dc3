-- Removes entries that were not handed on. The counter stays: the log of the store remembers up to
-- which number it has them.
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  if field ~= 'count' then redis.call('HDEL', KEYS[1], field) end
end
return 1
