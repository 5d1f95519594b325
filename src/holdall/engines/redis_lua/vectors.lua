-- Vectors of model ARGV[2] that came after number ARGV[3], at most ARGV[4]. Gives the version, how many, the data and the place of each, the
-- number of the last, whether there may be more, and how many there are in all; 'anew' if that number was never given.

if tonumber(ARGV[3]) > tonumber(call('HGET', P, 'w') or '0') then
  return { 'anew' }
end
local key, limit = P .. ':w:' .. ARGV[2], tonumber(ARGV[4])
local page = call('ZRANGEBYSCORE', key, '(' .. ARGV[3], '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
local found, after, more = {}, ARGV[3], #page == 2 * limit
for at = 1, #page, 2 do
  local one = call('HMGET', P .. ':v:' .. page[at], 'v', 'n', 'd')
  one[4] = page[at]
  found[#found + 1] = one
  after = page[at + 1]
  room = room - #one[3]
  if room < 0 then
    more = true
    break
  end
end
return { 'ok', found, after, more and 1 or 0, call('ZCARD', key) }
