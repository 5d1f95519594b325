-- What all scripts that walk share. A script looks at a limited number of entries and returns where to go on. If a
-- deleted tree still has entries, it returns 'reclaim': the client runs reclaim.lua first, and then asks again.

read_clock()
local refusal = replica_error()
if refusal then
  return refusal
elseif deleted_trees[1] then
  return { 'reclaim' }
end

-- Whether the indexes may list expired entries. Scores are rounded numbers, so a few later ones count too.
local has_expired = call('ZCOUNT', PREFIX .. ':x', '-inf', now_number + 8) > 0
local MOST_EXPIRED = 1000 -- expired entries that one script skips; if there are more, the client has to sweep first
local bytes_left = 1048576 -- of values and contents in one reply; the last entry may exceed it

local function has_prefix(text, prefix)
  return string.sub(text, 1, #prefix) == prefix
end

-- Whether an ID begins with `prefix` and not with `hidden` ('' for none), and is not in a hidden namespace below the
-- prefix, whose next label begins with '.holdall.'. If `hidden` is 'all', every ID is selected.
local function is_selected(id, prefix, hidden)
  if hidden == 'all' then
    return true
  elseif not has_prefix(id, prefix) or (hidden ~= '' and has_prefix(id, hidden)) then
    return false
  end
  local is_recursive = prefix == '' or string.sub(prefix, -1) == '\1'
  return not (is_recursive and string.sub(id, #prefix + 1, #prefix + 9) == '.holdall.')
end

-- Return how much of a file's content to read, at most `limit` bytes. Of a file that is too large to be searched, it is
-- the first chunk.
local function readable_bytes(size, limit)
  return math.min(size, size > LARGEST_FILE and CHUNK_SIZE or limit)
end

-- Parse groups of needles from ARGV[at] on. A value must contain one needle of each group.
local function parse_needles(at)
  local groups = {}
  for _ = 1, tonumber(ARGV[at] or '0') do
    local group = {}
    for _ = 1, tonumber(ARGV[at + 1]) do
      group[#group + 1] = ARGV[at + 2]
      at = at + 1
    end
    at = at + 1
    groups[#groups + 1] = group
  end
  return groups[1] and groups or nil
end

local function has_needles(text, groups)
  for _, group in ipairs(groups) do
    local is_found = false
    for _, needle in ipairs(group) do
      if string.find(text, needle, 1, true) then
        is_found = true
        break
      end
    end
    if not is_found then
      return false
    end
  end
  return true
end

-- Read an entry: its ID, head, value, search fields and content, of which at most `limit` bytes. `want` is 'h' for the
-- ID and head alone, 'v' for all but the content, 'c' for all. Returns nil if it is not live, or lacks the needles.
local function read_entry(id, want, limit, needles)
  local key = PREFIX .. ':e:' .. id
  local found = want == 'h' and not needles and { call('HGET', key, 'h') } or call('HMGET', key, 'h', 'd', 'x')
  local record = found[1] and parse_head(found[1])
  if not record or not is_live(id, record) then
    return nil
  end
  if needles and record.size == '-' and not has_needles(found[2], needles) then
    return nil
  end
  if want == 'h' then
    return { id, found[1] }
  end
  local content = false
  if want == 'c' and record.size ~= '-' then
    content = read_body(record.body, 0, readable_bytes(tonumber(record.size), limit))
    bytes_left = bytes_left - #content
  end
  bytes_left = bytes_left - #found[2]
  return { id, found[1], found[2], found[3], content }
end

-- Read the record of an entry: what `read_entry` reads, without the content of a file that is too large for one reply,
-- and its vectors: their number, and all their bytes. Returns nil if it is not live.
local function read_record(id)
  local record = call('HMGET', PREFIX .. ':e:' .. id, 'h', 'd', 'x')
  local head = record[1] and parse_head(record[1])
  if not head or not is_live(id, head) then
    return nil
  end
  local content, vectors = false, false
  if head.size ~= '-' and tonumber(head.size) <= LARGEST_FILE then
    content = read_body(head.body, 0, tonumber(head.size))
    bytes_left = bytes_left - #content
  end
  if head.model ~= '-' then
    local found = call('HMGET', PREFIX .. ':v:' .. id, 'n', 'd')
    if found[2] then
      vectors = found
      bytes_left = bytes_left - #found[2]
    end
  end
  bytes_left = bytes_left - #record[2]
  return { id, record[1], record[2], record[3], content, vectors }
end

