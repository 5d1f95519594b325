-- The documents of the index of texts: at which change and in which epoch it is, and of each part from ARGV[2] on the number,
-- versions, lengths, and who is gone; of parts before that, only who is gone.

local Q = P .. ':q'
local state = call('HMGET', Q, 'n', 'e', 'd')
local E = Q .. ':' .. (state[2] or '0')
local found, start = {}, tonumber(ARGV[2])
for part = start, math.ceil(tonumber(state[3] or '0') / 1024) - 1 do
  local one = call('HMGET', E .. ':d:' .. fmt(part), 'v', 'l', 'g')
  found[#found + 1] = { part, one[1], one[2], one[3] or '' }
end
for _, part in ipairs(call('SMEMBERS', E .. ':g')) do
  if tonumber(part) < start then
    found[#found + 1] = { tonumber(part), '', '', call('HGET', E .. ':d:' .. part, 'g') }
  end
end
return { 'ok', state[1] or '0', found }
