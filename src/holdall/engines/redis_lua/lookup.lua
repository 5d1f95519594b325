-- The versions and places of the entries that an indexed field finds: field ARGV[2], of places that begin with ARGV[3] and not with ARGV[4],
-- at most ARGV[5]; ARGV[6] says which fields the client knows to be indexed, and from 7 on there are pairs of bounds. Gives
-- them, or 'many'; 'fields' if others are indexed.

if (meta[3] or '') ~= ARGV[6] then
  return { 'ok', 'fields' }
end
local prefix, hidden, most = ARGV[3], ARGV[4], tonumber(ARGV[5])
local key, total = P .. ':i:' .. ARGV[2], 0
for at = 7, #ARGV, 2 do
  total = total + call('ZLEXCOUNT', key, '[' .. ARGV[at], '(' .. ARGV[at + 1])
end
if total > most then
  return { 'ok', 'many' }
end
local found, seen = {}, {}
for at = 7, #ARGV, 2 do
  for _, token in ipairs(call('ZRANGEBYLEX', key, '[' .. ARGV[at], '(' .. ARGV[at + 1])) do
    local place = string.match(token, '%z([^%z]*%z[^%z]*)$')
    if not seen[place] and string.sub(place, 1, #prefix) == prefix
      and not (hidden ~= '' and string.sub(place, 1, #hidden) == hidden) then
      seen[place] = true
      local r = parse(call('HGET', P .. ':e:' .. place, 'h'))
      if is_live(place, r) then
        found[#found + 1], found[#found + 2] = fmt(r.v), place
      end
    end
  end
end
return { 'ok', found }
