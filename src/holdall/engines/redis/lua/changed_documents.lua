-- Find documents of the text index whose entries have changed. ARGV[2] is the epoch of the index that the client has
-- read, ARGV[3] its change number then, and ARGV[4] a version from before. Returns, in turn, the numbers and IDs of the
-- documents that were removed after that change number, and of those of entries that have changed after that version.
-- Of many it returns the first ones. If the index has another epoch, it returns false.

local INDEX, LIMIT = PREFIX .. ':q', 5000
local EPOCH = INDEX .. ':' .. ARGV[2]
local found = {}
if (call('HGET', INDEX, 'e') or '0') ~= ARGV[2] then
  return { 'ok', false }
end
for _, removed in ipairs(call('ZRANGEBYSCORE', EPOCH .. ':r', '(' .. ARGV[3], '+inf', 'LIMIT', 0, LIMIT)) do
  found[#found + 1], found[#found + 2] = string.match(removed, '^(%d+) (.*)$')
end
local changed = call('ZRANGEBYSCORE', PREFIX .. ':c', '(' .. ARGV[4], '+inf', 'LIMIT', 0, LIMIT)
if changed[1] then
  for at, number in ipairs(call('HMGET', EPOCH .. ':n', unpack(changed))) do
    if number then
      found[#found + 1], found[#found + 2] = number, changed[at]
    end
  end
end
return { 'ok', found }
