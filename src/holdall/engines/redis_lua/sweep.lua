-- Turn up to ARGV[4] expired entries whose places begin with ARGV[5] into tombstones. ARGV[6] is how many that have
-- expired are elsewhere, and were looked at before. Gives how many were turned, how many to skip the next time, and
-- whether there may be more.

if trees[1] then
  return { 'pending' }
end
local limit, prefix, skip = tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6])
local page = call('ZRANGEBYSCORE', P .. ':x', '-inf', now_number + 8, 'LIMIT', skip, limit)
local turned = 0
for _, place in ipairs(page) do
  local r = parse(call('HGET', P .. ':e:' .. place, 'h'))
  if string.sub(place, 1, #prefix) == prefix and due(r.e) then
    bury(place, r, next_version(), 'e', now)
    turned = turned + 1
  else
    skip = skip + 1
  end
end
if turned > 0 then
  tell()
end
return { 'ok', turned, skip, #page == limit and 1 or 0 }
