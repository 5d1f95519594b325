-- Remove up to ARGV[4] of the oldest kept records, if they were replaced at time ARGV[5] or before; '' for any time.
-- Returns how many were removed.

local limit, newest = tonumber(ARGV[4]), tonumber(ARGV[5])
local removed = 0
for _, member in ipairs(call('ZRANGE', PREFIX .. ':hc', 0, limit - 1)) do
  local ended, id = string.match(member, '^(%d+) (.*)$')
  local old = cmsgpack.unpack(call('ZRANGE', PREFIX .. ':h:' .. id, 0, 0)[1])
  if newest and tonumber(old[8]) > newest then
    break
  end
  drop_oldest(id)
  call('HSET', PREFIX, 'hp', ended)
  removed = removed + 1
end
return removed
