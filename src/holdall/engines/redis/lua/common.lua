-- The beginning of every script: the clock, the records and the deleted trees of a shard. engines/redis/engine.py lists
-- the keys of a shard, and engines/redis/encoding.py describes the head of a record.
--
-- KEYS[1] is the shard's own hash; its name is the prefix of all keys of the shard. ARGV[1] is the current time in
-- microseconds, or '' for the server's time. Times and durations are decimal texts, because Lua numbers are not exact
-- above 2^53. An `id` is an entry's ID: its encoded namespace, a NUL byte and its key.

local PREFIX = KEYS[1]
local call = redis.call

-- The clock is read on first use, because an entry that never expires does not need it.
local now, now_number = ARGV[1], tonumber(ARGV[1])
local server_time
local function read_clock()
  if not now_number then
    local time = call('TIME')
    now = time[1] .. string.format('%06d', time[2])
    now_number = tonumber(now)
    server_time = now_number
  end
end

-- Return the error of a server that has become a replica, or nil. A replica refuses writes, so this deletes a key that
-- never exists. Only a script that has written nothing may call it: after a script's first write, a full server accepts
-- all further ones, so this call would hide that the server is full.
local function replica_error()
  local reply = redis.pcall('DEL', PREFIX .. ':none')
  if type(reply) == 'table' and string.find(reply.err, 'READONLY', 1, true) then
    return reply
  end
end

local LARGEST_EXACT = 9e15

-- Format a whole number; `..` would round it.
local function to_text(number)
  return string.format('%.0f', number)
end

-- Add two times, exactly.
local function add_times(a, b)
  local sum = tonumber(a) + tonumber(b)
  if sum < LARGEST_EXACT then
    return to_text(sum)
  end
  local low = tonumber(string.sub(a, -6)) + tonumber(string.sub(b, -6))
  local high = (tonumber(string.sub(a, 1, -7)) or 0) + (tonumber(string.sub(b, 1, -7)) or 0)
  if low >= 1000000 then
    low, high = low - 1000000, high + 1
  end
  return string.format('%.0f%06d', high, low)
end

-- Whether a time is now or earlier; '-' means never.
local function is_past(time)
  if time == '-' then
    return false
  end
  read_clock()
  local number = tonumber(time)
  if number < LARGEST_EXACT or now_number < LARGEST_EXACT then
    return number <= now_number
  end
  return #time < #now or (#time == #now and time <= now)
end

-- Parse a record's head. `kind` is p(ut), d(elete) or e(xpire); a missing part is '-'.
local function parse_head(head)
  if not head then
    error('LOST record')
  end
  local version, created, updated, expires, ttl, kind, size, appended, body, model = string.match(
    head, '^([^ ]+) ([^ ]+) ([^ ]+) ([^ ]+) ([^ ]+) ([^ ]+) ([^ ]+) ([^ ]+) ([^ ]+) ([^ ]+)$')
  return {
    version = tonumber(version), created = created, updated = updated, expires = expires, ttl = ttl,
    kind = kind, size = size, appended = appended, body = body, model = model,
  }
end

local function format_head(record)
  return to_text(record.version) .. ' ' .. record.created .. ' ' .. record.updated .. ' ' .. record.expires .. ' '
    .. record.ttl .. ' ' .. record.kind .. ' ' .. record.size .. ' ' .. record.appended .. ' ' .. record.body .. ' '
    .. record.model
end

-- The state of the shard; false for what it does not have. `stored_version` is the last version before this script,
-- `fields_stamp` that of the declared fields. `keeps_order` is set once a search has asked for neighbours. `history` is
-- the setting of the history, while it is on.
local stored_version, tree_count, fields_stamp, keeps_order, history = unpack(
  call('HMGET', PREFIX, 'v', 'g', 'x', 'o', 'h'))
local last_version = tonumber(stored_version or '0')

-- Trees that were deleted as a whole, and whose entries are not all tombstones yet. Each is stored with the fields
-- `index` ('p': all entries, 'f': files only), `low` and `high` (the range of IDs), `v` (entries up to this version are
-- deleted), `next` (the last version that a tombstone of it took) and `now` (the time of the deletion).
local deleted_trees = {}
if tree_count and tree_count ~= '0' then
  for _, text in ipairs(call('LRANGE', PREFIX .. ':g', 0, -1)) do
    deleted_trees[#deleted_trees + 1] = cmsgpack.unpack(text)
  end
end

-- Compare two texts byte by byte; `<` depends on the locale.
local function is_before(a, b)
  for at = 1, math.min(#a, #b) do
    local x, y = string.byte(a, at), string.byte(b, at)
    if x ~= y then
      return x < y
    end
  end
  return #a < #b
end

local function is_within(id, low, high)
  return not is_before(id, low) and is_before(id, high)
end

local function is_in_deleted_tree(id, record)
  for _, tree in ipairs(deleted_trees) do
    local is_matching = record.version <= tree.v and (tree.index == 'p' or record.size ~= '-')
    if is_matching and is_within(id, tree.low, tree.high) then
      return true
    end
  end
  return false
end

local function is_live(id, record)
  return record.kind == 'p' and not is_past(record.expires)
    and not (deleted_trees[1] and is_in_deleted_tree(id, record))
end

local CHUNK_SIZE = 1048576
local LARGEST_FILE = 67108864 -- bytes; contents of larger files are not searched: holdall.model.file_values.LARGEST

-- Read the bytes [start, finish) of a body. Raises an error if some are missing.
local function read_body(body, start, finish)
  if finish <= start then
    return ''
  end
  local chunks = {}
  for number = math.floor(start / CHUNK_SIZE), math.floor((finish - 1) / CHUNK_SIZE) do
    local offset = number * CHUNK_SIZE
    chunks[#chunks + 1] = call('GETRANGE', PREFIX .. ':b:' .. body .. ':' .. to_text(number),
      to_text(math.max(start - offset, 0)), to_text(math.min(finish - offset, CHUNK_SIZE) - 1))
  end
  local found = #chunks == 1 and chunks[1] or table.concat(chunks)
  if #found ~= finish - start then
    error('INCOMPLETE body ' .. body)
  end
  return found
end

-- Format a time so that texts sort as times do. The digits of a time before 1970 are complemented.
local TIME_LENGTH = 19
local function sortable_time(time)
  if string.sub(time, 1, 1) ~= '-' then
    return string.rep('0', TIME_LENGTH - #time) .. time
  end
  local digits = string.gsub(string.rep('0', TIME_LENGTH - #time) .. string.sub(time, 2), '%d', function(digit)
    return 9 - digit
  end)
  return '-' .. digits
end

-- Return the member of an entry in the order of creation of its namespace (`:o`).
local function member_of(created, name)
  return sortable_time(created) .. name
end

-- Split an entry's ID into its encoded namespace and its key.
local function split_id(id)
  local at = string.find(id, '\0', 1, true)
  return string.sub(id, 1, at - 1), string.sub(id, at + 1)
end

