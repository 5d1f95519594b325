-- Read one entry, the most frequent read. ARGV[2] is its ID. A content of more than ARGV[3] bytes is left out.

local refusal = replica_error()
if refusal then
  return refusal
end
local id = ARGV[2]
local found = call('HMGET', PREFIX .. ':e:' .. id, 'h', 'd')
if not found[1] then
  return false
end
local record = parse_head(found[1])
if not is_live(id, record) then
  return false
end
if record.size ~= '-' and tonumber(record.size) <= tonumber(ARGV[3]) then
  found[3] = read_body(record.body, 0, tonumber(record.size))
end
return found
