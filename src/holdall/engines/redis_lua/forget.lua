-- Remove up to ARGV[4] of the oldest tombstones, all but the newest ARGV[5] ('' for all), made before ARGV[6].
-- Gives how many there were.

local limit, keep, before = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local room = keep and call('ZCARD', P .. ':t') - keep or limit
local gone, mark = 0, tonumber(call('HGET', P, 'f') or '0')
if room > 0 then
  local page = call('ZRANGE', P .. ':t', 0, math.min(room, limit) - 1)
  for _, place in ipairs(page) do
    local r = parse(call('HGET', P .. ':e:' .. place, 'h'))
    if tonumber(r.u) < before then
      store(place, r, nil)
      gone, mark = gone + 1, math.max(mark, r.v)
    end
  end
end
if gone > 0 then
  call('HSET', P, 'f', fmt(mark))
end
return gone
