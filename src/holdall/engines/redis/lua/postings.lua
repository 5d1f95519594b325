-- Read the state of the text index, and the postings of the terms that ARGV has from 2 on. Returns the state, the last
-- version of the feed, the number of changes that are not indexed yet, the bytes of the first few of these, and the
-- postings.

local INDEX = PREFIX .. ':q'
local state = call('HMGET', INDEX, 'p', 'd', 'c', 't', 'n', 'e')
local position = state[1] or '0'
local lag, bytes = 0, 0
if tonumber(position) < last_version then
  lag = call('ZCOUNT', PREFIX .. ':c', '(' .. position, '+inf')
  for _, id in ipairs(call('ZRANGEBYSCORE', PREFIX .. ':c', '(' .. position, '+inf', 'LIMIT', 0, 17)) do
    local record = parse_head(call('HGET', PREFIX .. ':e:' .. id, 'h'))
    bytes = bytes + (tonumber(record.size) or call('HSTRLEN', PREFIX .. ':e:' .. id, 'd'))
  end
end
local found = {}
for at = 2, #ARGV do
  found[#found + 1] = call('HGETALL', INDEX .. ':' .. (state[6] or '0') .. ':t:' .. ARGV[at])
end
return { 'ok', state, to_text(last_version), lag, bytes, found }
