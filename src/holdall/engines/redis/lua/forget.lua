-- Remove kept records and tombstones of the IDs from ARGV[5] to before ARGV[6]. At most ARGV[4] of each are looked at:
-- tombstones after the first ARGV[7]. Returns how many records and tombstones were removed, and how many tombstones to
-- skip the next time, -1 after the last.

local limit, low, high, skip = tonumber(ARGV[4]), ARGV[5], ARGV[6], tonumber(ARGV[7])
local records, tombstones, last_purged = 0, 0, tonumber(call('HGET', PREFIX, 'f') or '0')
for _, id in ipairs(call('ZRANGEBYLEX', PREFIX .. ':hp', '[' .. low, '(' .. high, 'LIMIT', 0, limit)) do
  while records < limit and call('EXISTS', PREFIX .. ':h:' .. id) == 1 do
    drop_oldest(id)
    records = records + 1
  end
end
local page = call('ZRANGE', PREFIX .. ':t', skip, skip + limit - 1)
for _, id in ipairs(page) do
  if is_within(id, low, high) then
    local record = parse_head(call('HGET', PREFIX .. ':e:' .. id, 'h'))
    store_record(id, record, nil)
    tombstones, last_purged = tombstones + 1, math.max(last_purged, record.version)
  else
    skip = skip + 1
  end
end
if tombstones > 0 then
  call('HSET', PREFIX, 'f', to_text(last_purged))
end
return { records, tombstones, #page < limit and -1 or skip }
