-- Run a batch of point ops, in order, as one transaction. Each op sees what the ops before it have changed. The changes
-- are kept in tables. Nothing is written before all ops have passed, and after that nothing can fail.
--
-- ARGV[4] to ARGV[8] and ARGV[10] are those of client_write.lua. A tree of more than ARGV[9] entries is deleted as a
-- whole, not one by one. The ops follow: the name of each, and then its arguments.

local version_before = last_version
local current, stored = {}, {} -- records by ID, false if absent: as the batch leaves them, and as they are stored
local changed_ids, is_changed = {}, {} -- the IDs that the batch has changed, as a list and as a set
local bodies = {} -- changed bodies by name: `base` bytes are stored already, and `text` is appended
local added_trees = {}
local kept = {} -- what the batch replaces, while history is on
if history and deleted_trees[1] then
  return { 'reclaim' } -- what replaces an entry of a deleted tree must find its tombstone
end
local early_reply -- set by an op that cannot run now: what the client has to do first

local function find_record(id)
  local record = current[id]
  if record == nil then
    local head = call('HGET', PREFIX .. ':e:' .. id, 'h')
    record = head and parse_head(head) or false
    current[id], stored[id] = record, record
  end
  return record
end

local function find_live(id)
  local record = find_record(id)
  return record and is_live(id, record) and record or nil
end

local function find_live_file(id)
  local record = find_live(id)
  return record and record.size ~= '-' and record or nil
end

local function set_record(id, record)
  local before = find_record(id)
  if before and before.version ~= record.version and is_kept(id, before) then
    kept[#kept + 1] = { id = id, old = before, new = record }
  end
  current[id] = record
  if not is_changed[id] then
    is_changed[id] = true
    changed_ids[#changed_ids + 1] = id
  end
end

local function copy_record(record)
  local copied = {}
  for name, value in pairs(record) do
    copied[name] = value
  end
  return copied
end

local function new_body(text)
  local name = to_text(last_version)
  bodies[name] = { base = 0, text = text, is_new = true }
  return name
end

-- Read the bytes [start, finish) of a file.
local function read_content(record, start, finish)
  local size = tonumber(record.size)
  start, finish = math.min(start, size), math.min(finish or size, size)
  local body = bodies[record.body]
  if not body then
    return read_body(record.body, start, finish)
  end
  local text = string.sub(body.text, math.max(start - body.base, 0) + 1, math.max(finish - body.base, 0))
  return start < body.base and read_body(record.body, start, math.min(finish, body.base)) .. text or text
end

-- Return the length of a body that has at least `size` bytes.
local function body_length(name, size)
  local body = bodies[name]
  if body then
    return body.base + #body.text
  end
  local number = math.floor(size / CHUNK_SIZE)
  return number * CHUNK_SIZE + call('STRLEN', PREFIX .. ':b:' .. name .. ':' .. to_text(number))
end

local function delete_record(id, record, acting)
  set_record(id, make_tombstone(record, next_version(), 'd', now, acting))
end

-- List the live IDs of an index ('p': all entries, 'f': files) from `low` to before `high`, in order.
local function list_live_ids(index, low, high)
  local ids, is_unsorted = {}, false
  local find = index == 'p' and find_live or find_live_file
  for _, id in ipairs(call('ZRANGEBYLEX', PREFIX .. ':' .. index, '[' .. low, '(' .. high)) do
    if find(id) then
      ids[#ids + 1] = id
    end
  end
  for _, id in ipairs(changed_ids) do
    local old = stored[id]
    local is_stored = old and old.kind == 'p' and (index == 'p' or old.size ~= '-')
    if not is_stored and is_within(id, low, high) and find(id) then
      ids[#ids + 1] = id
      is_unsorted = true
    end
  end
  if is_unsorted then
    table.sort(ids, is_before)
  end
  return ids
end

local MOST_EXPIRED = 1000 -- expired entries that one script skips; if there are more, the client has to sweep first

-- Find the first live file from `low` to before `high`.
local function find_first_file(low, high)
  local found
  local expired = 0
  for _, id in ipairs(changed_ids) do
    if is_within(id, low, high) and find_live_file(id) and (not found or is_before(id, found)) then
      found = id
    end
  end
  local from = '[' .. low
  while true do
    local page = call('ZRANGEBYLEX', PREFIX .. ':f', from, '(' .. (found or high), 'LIMIT', 0, 64)
    for _, id in ipairs(page) do
      if find_live_file(id) then
        return id
      end
      local old = stored[id]
      expired = expired + (old and old.kind == 'p' and is_past(old.expires) and 1 or 0)
    end
    if #page < 64 then
      return found
    elseif expired > MOST_EXPIRED and not deleted_trees[1] then
      early_reply = { 'sweep' }
      return nil
    elseif deleted_trees[1] and not added_trees[1] then
      early_reply = { 'reclaim' }
      return nil
    end
    from = '(' .. page[64]
  end
end

local TREE_LIMIT = tonumber(ARGV[9]) -- entries that are deleted one by one

-- Delete all entries ('p') or files ('f') from `low` to before `high`, and return their number. A large tree is deleted
-- by a note of its range. From then on its entries are not live, and reclaim.lua replaces them with tombstones.
local function delete_tree(index, low, high, acting)
  local stored_count = call('ZLEXCOUNT', PREFIX .. ':' .. index, '[' .. low, '(' .. high)
  if stored_count <= TREE_LIMIT or added_trees[1] then
    local ids = list_live_ids(index, low, high)
    for _, id in ipairs(ids) do
      delete_record(id, current[id], acting)
    end
    return #ids
  end
  -- Scores are rounded numbers, so a few later ones are read too.
  local expired = call('ZRANGEBYSCORE', PREFIX .. ':x', '-inf', now_number + 8, 'LIMIT', 0, MOST_EXPIRED + 1)
  if deleted_trees[1] then
    early_reply = { 'reclaim' }
    return 0
  elseif #expired > MOST_EXPIRED then
    early_reply = { 'sweep' }
    return 0
  end
  local count = stored_count
  for _, id in ipairs(expired) do
    if is_within(id, low, high) and not is_changed[id] then
      local record = find_record(id)
      if (index == 'p' or record.size ~= '-') and is_past(record.expires) then
        count = count - 1
      end
    end
  end
  for at = 1, #changed_ids do
    local id = changed_ids[at]
    if is_within(id, low, high) then
      local old, record = stored[id], current[id]
      if old and old.kind == 'p' and (index == 'p' or old.size ~= '-') then
        count = count - 1
      end
      if is_live(id, record) and (index == 'p' or record.size ~= '-') then
        count = count + 1
        delete_record(id, record, acting)
      end
    end
  end
  local tree = {
    index = index, low = low, high = high, v = last_version, next = last_version, now = now, acting = acting,
  }
  deleted_trees[#deleted_trees + 1], added_trees[#added_trees + 1] = tree, tree
  last_version = last_version + stored_count * shard_count
  return count
end

local at = 10 -- the index of the last argument that was taken
local function next_arg()
  at = at + 1
  return ARGV[at]
end

local ops = {}

ops.get = function()
  local id = next_arg()
  local record = current[id]
  local value
  if record == nil then
    local found = call('HMGET', PREFIX .. ':e:' .. id, 'h', 'd')
    record = found[1] and parse_head(found[1]) or false
    current[id], stored[id] = record, record
    value = found[2]
  end
  if not record or not is_live(id, record) then
    return false
  end
  value = value or record.value or call('HGET', PREFIX .. ':e:' .. id, 'd')
  local has_content = record.size ~= '-' and tonumber(record.size) <= LARGEST_FILE
  return { format_head(record), value, has_content and read_content(record, 0) or false }
end

ops.put = function()
  local id, value, ttl, expect, paths, tokens = next_arg(), next_arg(), next_arg(), next_arg(), next_arg(), next_arg()
  local size, body, data, model, count, vectors = next_arg(), next_arg(), next_arg(), next_arg(), next_arg(), next_arg()
  local acting = next_arg()
  local old = find_live(id)
  if not meets_expectation(expect, old) then
    return nil, { 'conflict', format_version(old) }
  end
  local record = {
    version = next_version(), created = old and old.created or now, updated = now,
    kind = 'p', size = size, appended = '-', body = body, model = model, acting = acting,
  }
  record.expires, record.ttl = compute_expiry(ttl, old)
  record.value, record.tokens, record.paths = value, tokens, paths
  if ttl == 'k' and paths == '' and old then
    record.paths = old.paths
    if old.paths == nil then
      record.paths = call('HGET', PREFIX .. ':e:' .. id, 'x') or ''
    end
  end
  if size ~= '-' and body == '-' then
    record.body = new_body(data)
  elseif size ~= '-' then -- the client has sent the body in chunks before
    local sent = 0
    for number = 0, math.floor((size - 1) / CHUNK_SIZE) do
      sent = sent + call('STRLEN', PREFIX .. ':b:' .. body .. ':' .. to_text(number))
    end
    if sent ~= tonumber(size) then -- the server has lost some: it was restarted, or evicts keys
      early_reply = { 'resend' }
      return false
    end
    bodies[body] = { base = tonumber(size), text = '', is_new = true, is_sent = true }
  end
  if model ~= '-' then
    record.vectors = { n = count, d = vectors }
  end
  set_record(id, record)
  return format_head(record)
end

ops.delete = function()
  local id, expect, acting = next_arg(), next_arg(), next_arg()
  local old = find_live(id)
  if not meets_expectation(expect, old) then
    return nil, { 'conflict', format_version(old) }
  end
  if old then
    delete_record(id, old, acting)
  end
  return old and 1 or 0
end

ops.check = function()
  local id, expect = next_arg(), next_arg()
  local old = find_live(id)
  if not meets_expectation(expect, old) then
    return nil, { 'conflict', format_version(old) }
  end
  return false
end

ops.refresh = function()
  local id = next_arg()
  local old = find_live(id)
  if not old or old.ttl == '-' then
    return 0
  end
  local record = copy_record(old)
  record.expires = add_times(now, record.ttl)
  set_record(id, record)
  return 1
end

ops.backdate = function()
  local id, created, updated, expires = next_arg(), next_arg(), next_arg(), next_arg()
  local old = find_live(id)
  if not old then
    return 0
  end
  local record = copy_record(old)
  record.created = created ~= '-' and created or record.created
  if updated ~= '-' and not record.changed then
    record.changed = old.acting == nil and call('HGET', PREFIX .. ':e:' .. id, 'c') or old.updated
  end
  record.updated = updated ~= '-' and updated or record.updated
  record.expires = expires ~= '-' and expires or record.expires
  set_record(id, record)
  return 1
end

ops.set_change = function()
  local id, time, end_kind, acting, expires = next_arg(), next_arg(), next_arg(), next_arg(), next_arg()
  local old = find_record(id)
  if not old then
    return false
  end
  local record = copy_record(old)
  record.kind = old.kind == 'p' and 'p' or end_kind
  record.acting = acting
  if old.kind == 'p' then
    record.changed = time
  end
  for at = #kept, 1, -1 do
    if kept[at].id == id then
      if kept[at].new.version == old.version then
        kept[at].new = { version = old.version, kind = record.kind, updated = time, acting = acting }
        if expires ~= '-' then
          kept[at].old = copy_record(kept[at].old)
          kept[at].old.expires = expires
        end
      end
      break
    end
  end
  set_record(id, record)
  return false
end

ops.get_search_fields = function()
  local id = next_arg()
  local record = find_live(id)
  if not record then
    return false
  end
  local paths = record.paths or call('HGET', PREFIX .. ':e:' .. id, 'x')
  return paths and paths ~= '' and paths or false
end

ops.count_vectors = function()
  local id = next_arg()
  local record = find_live(id)
  if not record or record.model == '-' then
    return '0'
  end
  return record.vectors and record.vectors.n or call('HGET', PREFIX .. ':v:' .. id, 'n') or '0'
end

ops.embed = function()
  local id, version, model, count, vectors = next_arg(), next_arg(), next_arg(), next_arg(), next_arg()
  local old = find_live(id)
  if not old or to_text(old.version) ~= version then
    return 0
  end
  local record = copy_record(old)
  record.model, record.vectors = model, { n = count, d = vectors }
  set_record(id, record)
  return 1
end

ops.append = function()
  local id, data, expect, ttl, shape = next_arg(), next_arg(), next_arg(), next_arg(), next_arg()
  local acting = next_arg()
  local old = find_live(id)
  if not meets_expectation(expect, old) then
    return nil, { 'conflict', format_version(old) }
  end
  if not old then
    local record = {
      version = next_version(), created = now, updated = now,
      kind = 'p', size = tostring(#data), appended = '-', model = '-', acting = acting,
    }
    record.expires, record.ttl = compute_expiry(ttl, nil)
    record.value, record.tokens, record.paths, record.body = shape, '', '', new_body(data)
    set_record(id, record)
    return '0'
  end
  if old.size == '-' then
    return nil, { 'item' }
  end
  local record, size = copy_record(old), tonumber(old.size)
  record.version, record.updated, record.size, record.appended = next_version(), now, to_text(size + #data), '1'
  record.model, record.vectors = '-', nil
  record.acting, record.changed = acting, nil
  if body_length(old.body, size) == size then -- copies may share the body: the first one that grows keeps it
    local body = bodies[old.body]
    if not body then
      body = { base = size, text = '' }
      bodies[old.body] = body
    end
    body.text = body.text .. data
  else
    record.body = new_body(read_content(old, 0) .. data)
  end
  set_record(id, record)
  return old.size
end

ops.read = function()
  local id, start, finish = next_arg(), tonumber(next_arg()), tonumber(next_arg())
  local record = find_live_file(id)
  return record and read_content(record, start, finish) or false
end

ops.stat = function()
  local id, low, high = next_arg(), next_arg(), next_arg()
  local record = find_live_file(id)
  if record then
    return format_head(record)
  end
  return find_first_file(low, high) and 1 or false
end

-- Return the file that prevents a file from being written: one of its parent folders is a file, or it is a folder
-- itself.
local function find_blocking_file(parents, low, high)
  for _, id in ipairs(parents) do
    if find_live_file(id) then
      return id
    end
  end
  return find_first_file(low, high)
end

local function next_parents()
  local parents = {}
  for count = 1, tonumber(next_arg()) do
    parents[count] = next_arg()
  end
  return parents
end

ops.check_path = function()
  local low, high = next_arg(), next_arg()
  local blocking = find_blocking_file(next_parents(), low, high)
  if blocking then
    return nil, { 'blocked', blocking }
  end
  return false
end

ops.delete_tree = function()
  local index, id, low, high, acting = next_arg(), next_arg(), next_arg(), next_arg(), next_arg()
  local count = 0
  if id ~= '' then
    local record = find_live_file(id)
    if record then
      delete_record(id, record, acting)
      count = 1
    end
  end
  return count + delete_tree(index, low, high, acting)
end

local MAX_KEY_BYTES = 1536 -- that of holdall.model.keys

local function transfer_file(id, target, is_move, is_elsewhere, ttl, acting)
  local old = current[id]
  local record = copy_record(old)
  if record.value == nil then
    local found = call('HMGET', PREFIX .. ':e:' .. id, 'd', 'x')
    record.value = found[1]
    record.paths = record.paths or found[2] or ''
  end
  if record.model ~= '-' and not record.vectors then
    local found = call('HMGET', PREFIX .. ':v:' .. id, 'n', 'd')
    record.vectors = { n = found[1], d = found[2] }
  end
  record.tokens = record.tokens or ''
  record.version, record.updated = next_version(), now
  record.acting, record.changed = acting, nil
  if is_move then
    delete_record(id, old, acting)
    if is_elsewhere then
      local replaced = find_live(target)
      record.created = replaced and replaced.created or now
    end
    if ttl ~= 'k' then
      record.expires, record.ttl = compute_expiry(ttl, nil)
    end
  else
    record.created = now
  end
  set_record(target, record)
end

-- Move or copy a file, `src`, or a folder, whose files are from `src_low` to before `src_high`. `is_elsewhere` is true
-- for a move from another namespace.
local function transfer(is_move)
  local src, src_low, src_high = next_arg(), next_arg(), next_arg()
  local dst, dst_low, dst_high = next_arg(), next_arg(), next_arg()
  local ttl, is_elsewhere, parents = next_arg(), next_arg() == '1', next_parents()
  local acting = next_arg()
  if deleted_trees[1] and not added_trees[1] then
    early_reply = { 'reclaim' }
    return false
  end
  local function list_files(id, low, high)
    local ids = list_live_ids('f', low, high)
    if find_live_file(id) then
      table.insert(ids, 1, id)
    end
    return ids
  end
  local sources = list_files(src, src_low, src_high)
  if src ~= dst or not sources[1] then
    local existing = list_files(dst, dst_low, dst_high)
    local too_long
    local _, dst_key = split_id(dst)
    for _, id in ipairs(sources) do
      if #dst_key + #id - #src > MAX_KEY_BYTES then
        too_long = id
        break
      end
    end
    local is_file_over_file = existing[1] == dst and sources[1] == src and not sources[2]
    if not sources[1] or too_long or existing[2] or (existing[1] and not is_file_over_file) then
      return nil, {
        'transfer', sources[1] or '', sources[2] or '', too_long or '', existing[1] or '', existing[2] or '',
      }
    end
    local blocking = find_blocking_file(parents, dst_low, dst_high)
    if blocking then
      return nil, { 'blocked', blocking }
    end
    for _, id in ipairs(sources) do
      transfer_file(id, dst .. string.sub(id, #src + 1), is_move, is_elsewhere, ttl, acting)
    end
  end
  local record = find_live_file(dst)
  return record and format_head(record) or 1
end

-- Each moved file changes dozens of pages of memory. After the server has forked to save its data, the first write to a
-- page copies it: the next slice takes five times as long.
local MOST_MOVED = 100 -- files in one slice

-- Move some files of the folder `src`, whose files are from `low` to before `high`, to the folder `dst`. A file stays
-- if its new ID is taken. Returns the ID of the last one, or false if there was none.
ops.move_slice = function()
  local src, low, high, dst, limit, acting = next_arg(), next_arg(), next_arg(), next_arg(), next_arg(), next_arg()
  if deleted_trees[1] and not added_trees[1] then
    early_reply = { 'reclaim' }
    return false
  end
  local page = call('ZRANGEBYLEX', PREFIX .. ':f', '[' .. low, '(' .. high,
    'LIMIT', 0, math.min(limit, MOST_MOVED))
  for _, id in ipairs(page) do
    local target = dst .. string.sub(id, #src + 1)
    if find_live_file(id) and not find_live(target) then
      transfer_file(id, target, true, false, 'k', acting)
    end
  end
  return page[#page] or false
end

ops.move = function() return transfer(true) end
ops.copy = function() return transfer(false) end

local results, count = {}, 0
while at < #ARGV do
  local result, refusal = ops[next_arg()]()
  if early_reply then
    return early_reply
  elseif refusal then
    return replica_error() or { 'refused', count, unpack(refusal) }
  end
  count = count + 1
  results[count] = result
end
local answer = { 'ok', results, to_text(last_version) }
if not changed_ids[1] and not added_trees[1] then
  return replica_error() or answer
end

-- All checks are done. From here on the script only writes. A full server refuses a script's first write if it needs
-- memory. A batch that only deletes should pass, so its first write is a DEL.
local only_deletes = true
for _, id in ipairs(changed_ids) do
  only_deletes = only_deletes and current[id].kind == 'd'
end
if only_deletes then
  call('DEL', PREFIX .. ':none')
end
local references = {} -- how the number of records that use a body has changed, by the body's name
local function count_reference(name, by)
  if name ~= '-' then
    references[name] = (references[name] or 0) + by
  end
end
for _, one in ipairs(kept) do
  count_reference(one.old.body, 1)
  keep_old(one.id, one.old, one.new)
end
for _, id in ipairs(changed_ids) do
  local old, record = stored[id], current[id]
  if old then
    count_reference(old.body, -1)
  end
  count_reference(record.body, 1)
  store_record(id, old or nil, record, true)
end
for name, body in pairs(bodies) do
  local count = references[name] or 0
  if not body.is_new then
    append_body(name, body.base, body.text)
  elseif count > 0 then
    append_body(name, body.base, body.text)
    if body.is_sent then
      for chunk = 0, math.floor(body.base / CHUNK_SIZE) do
        call('PERSIST', PREFIX .. ':b:' .. name .. ':' .. to_text(chunk))
      end
    end
  end
  if body.is_new then
    references[name] = count - 1
  end
end
for name, by in pairs(references) do
  if by > 0 then
    call('HINCRBY', PREFIX .. ':r', name, by)
  end
  local is_unused = bodies[name] and bodies[name].is_new and by < 0
  for _ = 1, is_unused and 0 or -by do
    release_body(name)
  end
end
for _, tree in ipairs(added_trees) do
  call('RPUSH', PREFIX .. ':g', cmsgpack.pack(tree))
  call('HINCRBY', PREFIX, 'g', 1)
end
keep_answer(answer)
if last_version ~= version_before then
  finish_write()
end
return answer
