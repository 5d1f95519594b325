-- Give entries the indexed fields that they should have: ARGV has, from 4 on, place, version and fields in turn. Those that
-- have changed meanwhile have them already.

for at = 4, #ARGV, 3 do
  local place, key = ARGV[at], P .. ':e:' .. ARGV[at]
  local head = call('HGET', key, 'h')
  local r = head and parse(head)
  if r and r.k == 'p' and fmt(r.v) == ARGV[at + 1] then
    local before = call('HGET', key, 'i')
    if before then
      each_field(before, 'ZREM', place)
    end
    call('HSET', key, 'i', ARGV[at + 2])
    each_field(ARGV[at + 2], 'ZADD', place)
  end
end
return 1
