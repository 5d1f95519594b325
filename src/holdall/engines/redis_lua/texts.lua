-- How far the index of texts has come, where the feed stands, how many changes it is behind and how many bytes the first
-- few of these have; and of each term that ARGV has from 2 on the lists.

local Q = P .. ':q'
local state = call('HMGET', Q, 'p', 'd', 'c', 't', 'n', 'e')
local position = state[1] or '0'
local lag, bytes = 0, 0
if tonumber(position) < last then
  lag = call('ZCOUNT', P .. ':c', '(' .. position, '+inf')
  for _, place in ipairs(call('ZRANGEBYSCORE', P .. ':c', '(' .. position, '+inf', 'LIMIT', 0, 17)) do
    local r = parse(call('HGET', P .. ':e:' .. place, 'h'))
    bytes = bytes + (tonumber(r.s) or call('HSTRLEN', P .. ':e:' .. place, 'd'))
  end
end
local found = {}
for at = 2, #ARGV do
  found[#found + 1] = call('HGETALL', Q .. ':' .. (state[6] or '0') .. ':t:' .. ARGV[at])
end
return { 'ok', state, fmt(last), lag, bytes, found }
