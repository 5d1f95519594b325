-- Read vectors of model ARGV[2] that were written after number ARGV[3], at most ARGV[4]. Returns the version, number of
-- vectors, data and ID of each entry, the number of the last, whether there may be more, and the number of all entries
-- with vectors of the model. Returns 'reset' if number ARGV[3] was never used: the data was flushed or lost.

if tonumber(ARGV[3]) > tonumber(call('HGET', PREFIX, 'w') or '0') then
  return { 'reset' }
end
local key, limit = PREFIX .. ':w:' .. ARGV[2], tonumber(ARGV[4])
local page = call('ZRANGEBYSCORE', key, '(' .. ARGV[3], '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
local found, after, has_more = {}, ARGV[3], #page == 2 * limit
for at = 1, #page, 2 do
  local vectors = call('HMGET', PREFIX .. ':v:' .. page[at], 'v', 'n', 'd')
  vectors[4] = page[at]
  found[#found + 1] = vectors
  after = page[at + 1]
  bytes_left = bytes_left - #vectors[3]
  if bytes_left < 0 then
    has_more = true
    break
  end
end
return { 'ok', found, after, has_more and 1 or 0, call('ZCARD', key) }
