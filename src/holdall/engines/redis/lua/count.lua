-- Count the entries in ranges of IDs. ARGV has, from 2 on, the ends of each range, in the form of ZRANGEBYLEX. Returns
-- 'sweep' if many entries have expired: the client sweeps them first.

local expired = call('ZRANGEBYSCORE', PREFIX .. ':x', '-inf', now_number + 8, 'LIMIT', 0, MOST_EXPIRED + 1)
if #expired > MOST_EXPIRED then
  return { 'sweep' }
end
local count = 0
for at = 2, #ARGV, 2 do
  local low, high = ARGV[at], ARGV[at + 1]
  count = count + call('ZLEXCOUNT', PREFIX .. ':p', low, high)
  for _, id in ipairs(expired) do
    local is_above = low == '-' or not is_before(id, string.sub(low, 2))
    if is_above and (high == '+' or is_before(id, string.sub(high, 2))) then
      local record = parse_head(call('HGET', PREFIX .. ':e:' .. id, 'h'))
      if is_past(record.expires) then
        count = count - 1
      end
    end
  end
end
return { 'ok', count }
