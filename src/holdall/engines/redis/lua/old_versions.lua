-- List the versions of entry ARGV[2]. Returns the head of the present record, its author, when it was written, and the
-- parts of at most ARGV[3] kept records, newest first, without values.

local key = PREFIX .. ':e:' .. ARGV[2]
local found = call('HMGET', key, 'h', 'a', 'c')
local olds = {}
for _, packed in ipairs(call('ZREVRANGE', PREFIX .. ':h:' .. ARGV[2], 0, tonumber(ARGV[3]) - 1)) do
  local old = cmsgpack.unpack(packed)
  olds[#olds + 1] = { old[1], old[4], old[5], old[6], old[7], old[8], old[9] }
end
return { 'ok', found[1], found[2], found[3], olds }
