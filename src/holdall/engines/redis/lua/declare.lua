-- Declare the indexed fields whose paths ARGV has from 4 on. Returns the stamp of the declared fields, and the number
-- and path of each, and whether its index has the entries that were put before. The stamp differs after each new field,
-- and after a flush.

for at = 4, #ARGV do
  if not call('HGET', PREFIX .. ':y', ARGV[at]) then
    local number = call('HLEN', PREFIX .. ':y') + 1
    call('HSET', PREFIX .. ':y', ARGV[at], number)
    local time = call('TIME')
    call('HSET', PREFIX, 'x', number .. ' ' .. time[1] .. ' ' .. time[2])
    if call('EXISTS', PREFIX .. ':p') == 0 then
      call('SADD', PREFIX .. ':z', number)
    end
  end
end
local declared, found = call('HGETALL', PREFIX .. ':y'), {}
for at = 1, #declared, 2 do
  local path, number = declared[at], declared[at + 1]
  found[#found + 1] = { number, path, call('SISMEMBER', PREFIX .. ':z', number) }
end
return { call('HGET', PREFIX, 'x') or '', found }
