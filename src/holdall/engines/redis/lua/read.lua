-- Read a part of a file. ARGV[2] is its ID, ARGV[3] the start and ARGV[4] the end of the part ('' for the end of the
-- file), ARGV[5] the most bytes in one reply. ARGV[6] is the body of the parts that were read before, '' for none. The
-- bytes of a body never change; if the file has another body now, the reply is 'changed'. Returns the name of the body,
-- the end of the part, and bytes.

local refusal = replica_error()
if refusal then
  return refusal
end
local id, limit = ARGV[2], tonumber(ARGV[5])
local head = call('HGET', PREFIX .. ':e:' .. id, 'h')
local record = head and parse_head(head)
if not record or record.size == '-' or not is_live(id, record) then
  return false
elseif ARGV[6] ~= '' and record.body ~= ARGV[6] then
  return { 'changed' }
end
local size = tonumber(record.size)
local start, finish = math.min(tonumber(ARGV[3]), size), math.min(tonumber(ARGV[4]) or size, size)
return { record.body, to_text(finish), read_body(record.body, start, math.min(finish, start + limit)) }
