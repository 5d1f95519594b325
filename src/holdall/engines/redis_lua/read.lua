-- A part of a file: ARGV[2] is its place, ARGV[3] and ARGV[4] where it begins and ends, '' for where the file does, ARGV[5] how
-- many bytes may come at once. Gives the name of its body, where it ends, and the bytes. ARGV[6] is the body that the part
-- before this came from, '' for none: what a body has never changes, and if there is another now, the answer is 'moved'.

local place, most = ARGV[2], tonumber(ARGV[5])
local head = call('HGET', P .. ':e:' .. place, 'h')
local r = head and parse(head)
if not r or r.s == '-' or not is_live(place, r) then
  return false
elseif ARGV[6] ~= '' and r.b ~= ARGV[6] then
  return { 'moved' }
end
local size = tonumber(r.s)
local start, finish = math.min(tonumber(ARGV[3]), size), math.min(tonumber(ARGV[4]) or size, size)
return { r.b, fmt(finish), read_body(r.b, start, math.min(finish, start + most)) }
