-- Find entries by an indexed field, field number ARGV[2]. Their IDs begin with ARGV[3] and not with ARGV[4]. ARGV[6] is
-- the stamp of the indexed fields that the client knows. From ARGV[7] on there are pairs of bounds of the field's
-- values. Returns versions and IDs in turn, 'too many' if there are more than ARGV[5], or 'declare' if the stamp is
-- another one.

if (fields_stamp or '') ~= ARGV[6] then
  return { 'ok', 'declare' }
end
local prefix, hidden, limit = ARGV[3], ARGV[4], tonumber(ARGV[5])
local key, total = PREFIX .. ':i:' .. ARGV[2], 0
for at = 7, #ARGV, 2 do
  total = total + call('ZLEXCOUNT', key, '[' .. ARGV[at], '(' .. ARGV[at + 1])
end
if total > limit then
  return { 'ok', 'too many' }
end
local found, seen = {}, {}
for at = 7, #ARGV, 2 do
  for _, member in ipairs(call('ZRANGEBYLEX', key, '[' .. ARGV[at], '(' .. ARGV[at + 1])) do
    local id = string.match(member, '%z([^%z]*%z[^%z]*)$')
    if not seen[id] and is_selected(id, prefix, hidden) then
      seen[id] = true
      local record = parse_head(call('HGET', PREFIX .. ':e:' .. id, 'h'))
      if is_live(id, record) then
        found[#found + 1], found[#found + 2] = to_text(record.version), id
      end
    end
  end
end
return { 'ok', found }
