-- Read version ARGV[3] of entry ARGV[2], which may be the present one. ARGV[4] is '1' to read a content too, from
-- ARGV[5] to before ARGV[6] ('' for its end). Returns its head, value, search fields and content; nothing if it is not
-- kept.

local id = ARGV[2]
local found = call('HMGET', PREFIX .. ':e:' .. id, 'h', 'd', 'x')
local record = found[1] and parse_head(found[1])
if not record or record.kind ~= 'p' or to_text(record.version) ~= ARGV[3] then
  local packed = call('ZRANGEBYSCORE', PREFIX .. ':h:' .. id, ARGV[3], ARGV[3], 'LIMIT', 0, 1)[1]
  if not packed then
    return { 'ok' }
  end
  found = cmsgpack.unpack(packed)
  record = parse_head(found[1])
end
local content = false
if ARGV[4] == '1' and record.size ~= '-' then
  local size = tonumber(record.size)
  local start, finish = math.min(tonumber(ARGV[5]), size), math.min(tonumber(ARGV[6]) or size, size)
  content = read_body(record.body, start, math.max(start, finish))
end
return { 'ok', found[1], found[2], found[3] or '', content }
