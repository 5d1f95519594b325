-- Replace up to ARGV[4] expired entries, whose IDs begin with ARGV[5], with tombstones. ARGV[6] is the number of
-- expired entries to skip: those with other IDs, which were looked at before. Also remove the kept answers of clients
-- that were silent for ARGV[7] microseconds. These have no expiry of their own, because a server may evict keys that
-- have one. Returns the number of tombstones, how many entries to skip the next time, and whether there may be more.

if deleted_trees[1] then
  return { 'reclaim' }
end
local silent_since = now_number - tonumber(ARGV[7])
for _, client in ipairs(call('ZRANGEBYSCORE', PREFIX .. ':m', '-inf', silent_since, 'LIMIT', 0, 100)) do
  call('UNLINK', PREFIX .. ':d:' .. client)
  call('ZREM', PREFIX .. ':m', client)
end
local limit, prefix, skip = tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6])
local page = call('ZRANGEBYSCORE', PREFIX .. ':x', '-inf', now_number + 8, 'LIMIT', skip, limit)
local swept = 0
for _, id in ipairs(page) do
  local record = parse_head(call('HGET', PREFIX .. ':e:' .. id, 'h'))
  if string.sub(id, 1, #prefix) == prefix and is_past(record.expires) then
    replace_with_tombstone(id, record, next_version(), 'e', now)
    swept = swept + 1
  else
    skip = skip + 1
  end
end
if swept > 0 then
  finish_write()
end
return { 'ok', swept, skip, #page == limit and 1 or 0 }
