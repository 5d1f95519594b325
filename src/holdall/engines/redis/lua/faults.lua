-- Check a page of records: the IDs of ARGV[4] ('p': entries, 'hp': those with old records) from ARGV[5] on, at most
-- ARGV[6]. With ARGV[7] = '1', what can be made again is. Returns the faults, each with its kind and ID, the names of the
-- bodies that the records use, where to go on, '' for the end, and the last version of the shard.

local index, limit, repairs = ARGV[4], tonumber(ARGV[6]), ARGV[7] == '1'
local faults, bodies = {}, {}

local function is_in_indexes(id, record)
  local ns, name = split_id(id)
  local members = { { ':s', 0, ns }, { ':n:' .. ns, record.version, name }, { ':c', record.version, id } }
  if record.size ~= '-' then
    members[#members + 1] = { ':f', 0, id }
  end
  if record.expires ~= '-' then
    members[#members + 1] = { ':x', record.expires, id }
  end
  local is_complete = true
  for _, member in ipairs(members) do
    local score = call('ZSCORE', PREFIX .. member[1], member[3])
    if not score or tonumber(score) ~= tonumber(member[2]) then
      is_complete = false
      if repairs then
        call('ZADD', PREFIX .. member[1], member[2], member[3])
      end
    end
  end
  return is_complete
end

local function has_vectors(id, record)
  local stored, listed = PREFIX .. ':v:' .. id, PREFIX .. ':w:' .. record.model
  if call('EXISTS', stored) == 1 and call('ZSCORE', listed, id) then
    return true
  end
  if repairs then -- so that `reindex` makes them again
    call('DEL', stored)
    call('ZREM', listed, id)
    record.model = '-'
    call('HSET', PREFIX .. ':e:' .. id, 'h', format_head(record))
  end
  return false
end

local function has_content(record)
  local size, stored, number = tonumber(record.size), 0, 0
  while stored < size do
    local length = call('STRLEN', PREFIX .. ':b:' .. record.body .. ':' .. to_text(number))
    stored, number = stored + length, number + 1
    if length < CHUNK_SIZE then
      break
    end
  end
  return stored >= size
end

local function check_entry(id)
  local head = call('HGET', PREFIX .. ':e:' .. id, 'h')
  local record = head and parse_head(head)
  if not record or record.kind ~= 'p' then
    faults[#faults + 1] = { 'entry', id }
    return
  end
  bodies[#bodies + 1] = record.body
  if not is_in_indexes(id, record) then
    faults[#faults + 1] = { 'index', id }
  end
  if record.model ~= '-' and not has_vectors(id, record) then
    faults[#faults + 1] = { 'vectors', id }
  end
  if record.size ~= '-' and not has_content(record) then
    faults[#faults + 1] = { 'contents', id }
  end
end

local page = call('ZRANGEBYLEX', PREFIX .. ':' .. index, ARGV[5], '+', 'LIMIT', 0, limit)
for _, id in ipairs(page) do
  if index == 'p' then
    check_entry(id)
  else
    for _, packed in ipairs(call('ZRANGE', PREFIX .. ':h:' .. id, 0, -1)) do
      bodies[#bodies + 1] = parse_head(cmsgpack.unpack(packed)[1]).body
    end
  end
end
return { faults, bodies, #page == limit and '(' .. page[#page] or '', to_text(last_version) }
