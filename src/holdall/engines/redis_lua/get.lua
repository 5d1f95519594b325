-- One entry, the most frequent question of all. ARGV[2] is its place; a content of more than ARGV[3] bytes is left out.

local place = ARGV[2]
local found = call('HMGET', P .. ':e:' .. place, 'h', 'd')
if not found[1] then
  return false
end
local r = parse(found[1])
if not is_live(place, r) then
  return false
end
if r.s ~= '-' and tonumber(r.s) <= tonumber(ARGV[3]) then
  found[3] = read_body(r.b, 0, tonumber(r.s))
end
return found
