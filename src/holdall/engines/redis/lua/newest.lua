-- List entries below version ARGV[2] ('' for all), newest first. They are read from the namespaces from ARGV[3] to
-- ARGV[4] (in the form of ZRANGEBYLEX); if these are many, from the feed, where IDs begin with ARGV[5] and not with
-- ARGV[6]. ARGV[7] is the limit, ARGV[8] what to read of each entry, and from ARGV[9] on there are groups of needles.
-- Returns the entries, the version to go on below ('' for the end), and the last version of the feed.

local below, prefix, hidden, limit, want = ARGV[2], ARGV[5], ARGV[6], tonumber(ARGV[7]), ARGV[8]
local needles = parse_needles(9)
local FEW, MANY = 64, 1000
local namespaces = ARGV[3] ~= '' and call('ZRANGEBYLEX', PREFIX .. ':s', ARGV[3], ARGV[4], 'LIMIT', 0, FEW + 1)
local is_merged = namespaces and #namespaces <= FEW

-- A stream is the keys of one namespace, or the feed, by version. Streams are merged, and each is read a page at a
-- time.
local page_size = is_merged and math.min(limit, math.max(8, math.ceil(limit / math.max(#namespaces, 1)))) or MANY
local function read_page(stream, top)
  stream.page = call('ZREVRANGEBYSCORE', stream.key, top, '-inf', 'WITHSCORES', 'LIMIT', 0, page_size)
  stream.at, stream.version = 1, tonumber(stream.page[2])
end

local streams = {}
if is_merged then
  for _, ns in ipairs(namespaces) do
    streams[#streams + 1] = { key = PREFIX .. ':n:' .. ns, id_prefix = ns .. '\0' }
  end
else
  streams[1] = { key = PREFIX .. ':c', id_prefix = '' }
end
for _, stream in ipairs(streams) do
  read_page(stream, below == '' and '+inf' or '(' .. below)
end

local function find_newest()
  local newest
  for _, stream in ipairs(streams) do
    if stream.version and not (newest and newest.version > stream.version) then
      newest = stream
    end
  end
  return newest
end

local look_limit = is_merged and math.max(limit, 500) or MANY
local found, after, looked_at, stream = {}, '', 0, find_newest()
while stream and bytes_left >= 0 and #found < limit and looked_at < look_limit do
  local id = stream.id_prefix .. stream.page[stream.at]
  after, looked_at = to_text(stream.version), looked_at + 1
  if is_selected(id, prefix, hidden) then
    found[#found + 1] = read_entry(id, want, 1e18, needles)
  end
  stream.at = stream.at + 2
  stream.version = tonumber(stream.page[stream.at + 1])
  if not stream.version and #stream.page == 2 * page_size then
    read_page(stream, '(' .. after)
  end
  stream = find_newest()
end
return { 'ok', found, stream and after or '', to_text(last_version) }
