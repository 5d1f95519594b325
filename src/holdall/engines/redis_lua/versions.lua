-- Entries at the versions that ARGV has from 5 on, each with its place if that is known: then it is the entry that is there
-- now, if it has changed. Of those whose places begin with ARGV[2] and not with ARGV[3]; as much of each as ARGV[4] wants, and
-- with 'w' its vectors. Gives pairs of a version's number in the list and an entry, and how many were looked at.

local prefix, hidden, want = ARGV[2], ARGV[3], ARGV[4]
local found, looked = {}, 0
for at = 5, #ARGV, 2 do
  local version, known = ARGV[at], ARGV[at + 1]
  local place = call('ZRANGEBYSCORE', P .. ':c', version, version)[1] or (known ~= '' and known)
  looked = looked + 1
  if place and string.sub(place, 1, #prefix) == prefix
    and not (hidden ~= '' and string.sub(place, 1, #hidden) == hidden) then
    local one = entry(place, want == 'w' and 'h' or want, 1e18)
    if one and want == 'w' then
      local vectors = call('HMGET', P .. ':v:' .. place, 'n', 'd')
      one[3], one[4] = vectors[1], vectors[2]
      room = room - #(vectors[2] or '')
    end
    if one then
      found[#found + 1] = { looked, one }
    end
  end
  if room < 0 then
    break
  end
end
return { 'ok', found, looked }
