-- Keep the records that changes replace for ARGV[4] microseconds; '' to keep none from now on. ARGV[5] is the time to
-- which a copy has moved the beginning back, or ''. The setting is the duration, the time since when records are kept,
-- and the last version before that.

if ARGV[4] == '' then
  call('HDEL', PREFIX, 'h', 'hp')
  return false
end
local keep, since, position = ARGV[4], now, to_text(last_version)
if history then
  local old_keep, old_since, old_position = string.match(history, '^(%d+) (%d+) (%d+)$')
  since = old_keep == keep and old_since or to_text(math.max(tonumber(old_since), now_number - tonumber(old_keep)))
  position = old_position
end
if ARGV[5] ~= '' then
  since = to_text(math.min(tonumber(since), tonumber(ARGV[5])))
end
call('HSET', PREFIX, 'h', keep .. ' ' .. since .. ' ' .. position)
return keep
