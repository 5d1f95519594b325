-- Have the fields indexed that ARGV has from 4 on. Gives what tells this state of affairs from any other, before and after
-- all was flushed, too; and all that are: number, path, and whether what was put before is indexed.

for at = 4, #ARGV do
  if not call('HGET', P .. ':y', ARGV[at]) then
    local number = call('HLEN', P .. ':y') + 1
    call('HSET', P .. ':y', ARGV[at], number)
    local time = call('TIME')
    call('HSET', P, 'x', number .. ' ' .. time[1] .. ' ' .. time[2])
    if call('EXISTS', P .. ':p') == 0 then
      call('SADD', P .. ':z', number)
    end
  end
end
local known, found = call('HGETALL', P .. ':y'), {}
for at = 1, #known, 2 do
  found[#found + 1] = { known[at + 1], known[at], call('SISMEMBER', P .. ':z', known[at + 1]) }
end
return { call('HGET', P, 'x') or '', found }
