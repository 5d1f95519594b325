-- Entries below version ARGV[2], newest first, of the namespaces from ARGV[3] to ARGV[4] (as ZRANGEBYLEX has them) or, if
-- these are more than a few, of all whose places begin with ARGV[5] and not with ARGV[6]. At most ARGV[7] are given, and
-- as much of each as ARGV[8] wants, of those that have one of each group of needles from ARGV[9] on. Gives them, below
-- which version to go on, '' for nowhere, and where the feed stands.

local below, prefix, hidden, limit, want = ARGV[2], ARGV[5], ARGV[6], tonumber(ARGV[7]), ARGV[8]
local needles = needles_from(9)
local FEW, MANY = 64, 1000
local spaces = ARGV[3] ~= '' and call('ZRANGEBYLEX', P .. ':s', ARGV[3], ARGV[4], 'LIMIT', 0, FEW + 1)
local is_merged = spaces and #spaces <= FEW

-- What is merged are lines, each a namespace's keys or the feed, of which a few are read at a time.
local size = is_merged and math.min(limit, math.max(8, math.ceil(limit / math.max(#spaces, 1)))) or MANY
local function read(line, top)
  line.page, line.at = call('ZREVRANGEBYSCORE', line.key, top, '-inf', 'WITHSCORES', 'LIMIT', 0, size), 1
  line.version = tonumber(line.page[2])
end

local lines = {}
for at = 1, is_merged and #spaces or 1 do
  local line = is_merged and { key = P .. ':n:' .. spaces[at], before = spaces[at] .. '\0' } or { key = P .. ':c', before = '' }
  read(line, below == '' and '+inf' or '(' .. below)
  lines[at] = line
end

local function newest()
  local best
  for _, line in ipairs(lines) do
    if line.version and not (best and best.version > line.version) then
      best = line
    end
  end
  return best
end

local found, after, looked, line = {}, '', 0, newest()
while line and room >= 0 and #found < limit and looked < (is_merged and math.max(limit, 500) or MANY) do
  local place = line.before .. line.page[line.at]
  after, looked = fmt(line.version), looked + 1
  if string.sub(place, 1, #prefix) == prefix and (hidden == '' or string.sub(place, 1, #hidden) ~= hidden) then
    found[#found + 1] = entry(place, want, 1e18, needles)
  end
  line.at = line.at + 2
  line.version = tonumber(line.page[line.at + 1])
  if not line.version and #line.page == 2 * size then
    read(line, '(' .. after)
  end
  line = newest()
end
return { 'ok', found, line and after or '', fmt(last) }
