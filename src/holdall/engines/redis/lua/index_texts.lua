-- Write a slice of changes to the text index, if its change number is still ARGV[4]. ARGV[5] is the epoch and ARGV[6]
-- the position in the feed after the slice. ARGV[7] is '1' if the index is rebuilt from this slice on. Five lists
-- follow, each with its length first: postings (term, part, documents, frequencies), new documents (part, versions,
-- lengths), removed documents (part, index in the part, number), the documents of entries (ID, number), and entries
-- that have no document any more (ID). Returns 1, or 0 if the change number was another one.

local INDEX = PREFIX .. ':q'
local REMOVED_TTL = 30 -- seconds; longer than a search takes
local state = call('HMGET', INDEX, 'n', 'd', 'c', 't')
if (state[1] or '0') ~= ARGV[4] then
  return 0
end
local EPOCH = INDEX .. ':' .. ARGV[5]
local is_rebuilt = ARGV[7] == '1'
local documents = is_rebuilt and 0 or tonumber(state[2] or '0')
local count, total = is_rebuilt and 0 or tonumber(state[3] or '0'), is_rebuilt and 0 or tonumber(state[4] or '0')
local at = 7
local function next_arg()
  at = at + 1
  return ARGV[at]
end

-- Read an unsigned little-endian number of 4 bytes.
local function read_unsigned(bytes, index)
  local a, b, c, d = string.byte(bytes, index, index + 3)
  return a + b * 256 + c * 65536 + d * 16777216
end

local function append_to_field(key, field, bytes)
  call('HSET', key, field, (call('HGET', key, field) or '') .. bytes)
end

for _ = 1, tonumber(next_arg()) do
  local key, part = EPOCH .. ':t:' .. next_arg(), next_arg()
  append_to_field(key, part .. 'd', next_arg())
  append_to_field(key, part .. 't', next_arg())
end
for _ = 1, tonumber(next_arg()) do
  local key, versions, lengths = EPOCH .. ':d:' .. next_arg(), next_arg(), next_arg()
  append_to_field(key, 'v', versions)
  append_to_field(key, 'l', lengths)
  documents, count = documents + #versions / 8, count + #versions / 8
  for index = 1, #lengths, 4 do
    total = total + read_unsigned(lengths, index)
  end
end
for _ = 1, tonumber(next_arg()) do
  local part, index, number = next_arg(), next_arg(), next_arg()
  local key = EPOCH .. ':d:' .. part
  total, count = total - read_unsigned(call('HGET', key, 'l'), index * 4 + 1), count - 1
  append_to_field(key, 'g', number)
  call('SADD', EPOCH .. ':g', part)
end

-- A search that has read a removed document finds the entry with its ID (`changed_documents.lua`).
local change = next_number(ARGV[4])
local function record_removed(id)
  local number = call('HGET', EPOCH .. ':n', id)
  if number then
    call('ZADD', EPOCH .. ':r', change, number .. ' ' .. id)
  end
end

for _ = 1, tonumber(next_arg()) do
  local id, number = next_arg(), next_arg()
  record_removed(id)
  call('HSET', EPOCH .. ':n', id, number)
end
for _ = 1, tonumber(next_arg()) do
  local id = next_arg()
  record_removed(id)
  call('HDEL', EPOCH .. ':n', id)
end
call('ZREMRANGEBYSCORE', EPOCH .. ':r', '-inf', to_text(tonumber(change) - REMOVED_TTL * 1000000))
call('EXPIRE', EPOCH .. ':r', REMOVED_TTL)
call('HSET', INDEX, 'n', change, 'd', to_text(documents), 'c', to_text(count), 't', to_text(total),
  'p', ARGV[6], 'e', ARGV[5])
return 1
