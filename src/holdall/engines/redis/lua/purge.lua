-- Remove up to ARGV[4] of the oldest tombstones, if they were made at time ARGV[5] or before. Returns how many were
-- removed.

local limit, newest = tonumber(ARGV[4]), tonumber(ARGV[5])
local removed, last_purged = 0, tonumber(call('HGET', PREFIX, 'f') or '0')
for _, id in ipairs(call('ZRANGE', PREFIX .. ':t', 0, limit - 1)) do
  local record = parse_head(call('HGET', PREFIX .. ':e:' .. id, 'h'))
  if tonumber(record.updated) <= newest then
    store_record(id, record, nil)
    removed, last_purged = removed + 1, math.max(last_purged, record.version)
  end
end
if removed > 0 then
  call('HSET', PREFIX, 'f', to_text(last_purged))
end
return removed
