-- Drop the learned field ARGV[4]: its index, and its number in the list of indexed fields. Its number stays taken,
-- under a name that no field has, because the next number is the length of the list.

local number = call('HGET', PREFIX .. ':y', ARGV[4])
call('HDEL', PREFIX .. ':k', ARGV[4])
call('HDEL', PREFIX .. ':u', ARGV[4])
if number then
  call('HDEL', PREFIX .. ':y', ARGV[4])
  call('HSET', PREFIX .. ':y', '\0' .. number, number)
  call('SREM', PREFIX .. ':z', number)
  call('UNLINK', PREFIX .. ':i:' .. number)
  local time = call('TIME')
  call('HSET', PREFIX, 'x', 'without ' .. number .. ' ' .. time[1] .. ' ' .. time[2])
end
return 1
