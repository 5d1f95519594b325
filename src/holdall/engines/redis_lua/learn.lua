-- Write a slice of the index of texts, if the index is still at change ARGV[4]. ARGV[5] is the epoch that it is in then,
-- ARGV[6] where in the feed it is then, ARGV[7] '1' if it begins anew with it. There follow, with their number before
-- them: lists (term, part, documents, times), new documents (part, versions, lengths), those that are gone (part, which of it, number),
-- whose they are (place, document), and who has none any more (place). Gives 1, or 0 if the index was at another change.

local Q = P .. ':q'
local state = call('HMGET', Q, 'n', 'd', 'c', 't')
if (state[1] or '0') ~= ARGV[4] then
  return 0
end
local E = Q .. ':' .. ARGV[5]
local is_anew = ARGV[7] == '1'
local documents = is_anew and 0 or tonumber(state[2] or '0')
local count, total = is_anew and 0 or tonumber(state[3] or '0'), is_anew and 0 or tonumber(state[4] or '0')
local at = 7
local function take()
  at = at + 1
  return ARGV[at]
end

local function unsigned(text, place)
  local a, b, c, d = string.byte(text, place, place + 3)
  return a + b * 256 + c * 65536 + d * 16777216
end

local function follow(key, field, text)
  call('HSET', key, field, (call('HGET', key, field) or '') .. text)
end

for _ = 1, tonumber(take()) do
  local key, part = E .. ':t:' .. take(), take()
  follow(key, part .. 'd', take())
  follow(key, part .. 't', take())
end
for _ = 1, tonumber(take()) do
  local key, versions, lengths = E .. ':d:' .. take(), take(), take()
  follow(key, 'v', versions)
  follow(key, 'l', lengths)
  documents, count = documents + #versions / 8, count + #versions / 8
  for place = 1, #lengths, 4 do
    total = total + unsigned(lengths, place)
  end
end
for _ = 1, tonumber(take()) do
  local part, within, number = take(), take(), take()
  local key = E .. ':d:' .. part
  total, count = total - unsigned(call('HGET', key, 'l'), within * 4 + 1), count - 1
  follow(key, 'g', number)
  call('SADD', E .. ':g', part)
end
for _ = 1, tonumber(take()) do
  call('HSET', E .. ':n', take(), take())
end
for _ = 1, tonumber(take()) do
  call('HDEL', E .. ':n', take())
end
call('HSET', Q, 'n', numbered(ARGV[4]), 'd', fmt(documents), 'c', fmt(count), 't', fmt(total), 'p', ARGV[6], 'e', ARGV[5])
return 1
