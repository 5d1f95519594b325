-- How many entries there are in each of the ranges of places that ARGV has from 2 on, in pairs. 'sweep' where so much has
-- expired that it is better cleared away first.

local ended = call('ZRANGEBYSCORE', P .. ':x', '-inf', now_number + 8, 'LIMIT', 0, 1001)
if #ended > 1000 then
  return { 'sweep' }
end
local count = 0
for at = 2, #ARGV, 2 do
  local low, high = ARGV[at], ARGV[at + 1]
  count = count + call('ZLEXCOUNT', P .. ':p', low, high)
  for _, place in ipairs(ended) do
    local is_above = low == '-' or not less(place, string.sub(low, 2))
    if is_above and (high == '+' or less(place, string.sub(high, 2))) then
      local r = parse(call('HGET', P .. ':e:' .. place, 'h'))
      if due(r.e) then
        count = count - 1
      end
    end
  end
end
return { 'ok', count }
