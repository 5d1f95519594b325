-- Clear the text index: the state becomes that of a new index. Only its change number goes on, so that a slice of
-- changes that was read before is not written any more. The keys of the epoch are left to the caller.

local INDEX = PREFIX .. ':q'
local change = next_number(call('HGET', INDEX, 'n'))
call('DEL', INDEX)
call('HSET', INDEX, 'n', change)
return 1
