-- Count the entries (ARGV[2] is 'p') or only the files ('f') in ranges of IDs. ARGV has, from 3 on, the ends of each
-- range, in the form of ZRANGEBYLEX. Returns 'sweep' if many entries have expired: the client sweeps them first.

local expired = call('ZRANGEBYSCORE', PREFIX .. ':x', '-inf', now_number + 8, 'LIMIT', 0, MOST_EXPIRED + 1)
if #expired > MOST_EXPIRED then
  return { 'sweep' }
end
local count = 0
for at = 3, #ARGV, 2 do
  local low, high = ARGV[at], ARGV[at + 1]
  count = count + call('ZLEXCOUNT', PREFIX .. ':' .. ARGV[2], low, high)
  for _, id in ipairs(expired) do
    local is_above = low == '-' or not is_before(id, string.sub(low, 2))
    if is_above and (high == '+' or is_before(id, string.sub(high, 2))) then
      local record = parse_head(call('HGET', PREFIX .. ':e:' .. id, 'h'))
      if is_past(record.expires) and (ARGV[2] == 'p' or record.size ~= '-') then
        count = count - 1
      end
    end
  end
end
return { 'ok', count }
