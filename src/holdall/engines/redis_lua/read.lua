-- A part of a file: ARGV[2] is its place, ARGV[3] and ARGV[4] where it begins and ends, '' for where the file does.

local place = ARGV[2]
local head = call('HGET', P .. ':e:' .. place, 'h')
local r = head and parse(head)
if not r or r.s == '-' or not is_live(place, r) then
  return false
end
local size = tonumber(r.s)
return read_body(r.b, math.min(tonumber(ARGV[3]), size), math.min(tonumber(ARGV[4]) or size, size))
