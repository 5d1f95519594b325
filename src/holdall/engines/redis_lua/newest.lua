-- Entries below version ARGV[2], newest first, of the namespaces from ARGV[3] to ARGV[4] (as ZRANGEBYLEX has them) or, if
-- these are more than a few, of all whose places begin with ARGV[5] and not with ARGV[6]. At most ARGV[7] are given, and
-- as much of each as ARGV[8] wants, of those that have one of each group of needles from ARGV[9] on. Gives them, below
-- which version to go on, '' for nowhere, and where the feed stands.

local below, prefix, hidden, limit, want = ARGV[2], ARGV[5], ARGV[6], tonumber(ARGV[7]), ARGV[8]
local needles = needles_from(9)
local FEW, MANY = 64, 1000
local spaces = ARGV[3] ~= '' and call('ZRANGEBYLEX', P .. ':s', ARGV[3], ARGV[4], 'LIMIT', 0, FEW + 1)
local top = below == '' and '+inf' or '(' .. below
local candidates, ended = {}, true -- pairs of a version and a place
if spaces and #spaces <= FEW then
  for _, ns in ipairs(spaces) do
    local page = call('ZREVRANGEBYSCORE', P .. ':n:' .. ns, top, '-inf', 'WITHSCORES', 'LIMIT', 0, limit)
    ended = ended and #page < 2 * limit
    for at = 1, #page, 2 do
      candidates[#candidates + 1] = { tonumber(page[at + 1]), ns .. '\0' .. page[at] }
    end
  end
  if #spaces > 1 then -- of these, the first `limit` are surely the newest of all
    table.sort(candidates, function(a, b) return a[1] > b[1] end)
  end
else
  local page = call('ZREVRANGEBYSCORE', P .. ':c', top, '-inf', 'WITHSCORES', 'LIMIT', 0, MANY)
  ended = #page < 2 * MANY
  for at = 1, #page, 2 do
    candidates[#candidates + 1] = { tonumber(page[at + 1]), page[at] }
  end
end
local found, after = {}, ''
for number, candidate in ipairs(candidates) do
  local version, place = candidate[1], candidate[2]
  if string.sub(place, 1, #prefix) == prefix and (hidden == '' or string.sub(place, 1, #hidden) ~= hidden) then
    local one = entry(place, want, 1e18, needles)
    if one then
      found[#found + 1] = one
    end
  end
  if not (ended and number == #candidates) then
    after = fmt(version)
    if room < 0 or #found == limit or (spaces and #spaces > 1 and #spaces <= FEW and number == limit) then
      break
    end
  else
    after = ''
  end
end
return { 'ok', found, after, fmt(last) }
