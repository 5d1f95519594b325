-- What all scripts that write share: the next version, and how a record replaces another one in all indexes. ARGV[2] is
-- `number of the shard/number of shards`. New versions are greater than ARGV[3].

local shard, shard_count = string.match(ARGV[2], '^(%d+)/(%d+)$')
shard, shard_count = tonumber(shard), tonumber(shard_count)

read_clock()

local function read_server_time()
  if not server_time then
    local time = call('TIME')
    server_time = time[1] * 1000000 + time[2]
  end
  return server_time
end

-- A version is the time in microseconds, so that no version is used again after a flush or a loss of data. Versions of
-- a shard are a multiple of the number of shards, plus the shard's own number: so no two shards use the same one.
local first_version
local function next_version()
  local floor = math.max(last_version, tonumber(ARGV[3]), read_server_time() - shard_count)
  last_version = (math.floor(floor / shard_count) + 1) * shard_count + shard
  first_version = first_version or last_version
  return last_version
end

-- Return a number greater than the previous one. It is the time too, so that no number is used again after a flush.
local function next_number(previous)
  return to_text(math.max(tonumber(previous or '0') + 1, read_server_time()))
end

-- Delete a body, unless other records share it. `:r` counts those others.
local function release_body(body)
  local others = tonumber(call('HGET', PREFIX .. ':r', body) or '0')
  if others > 1 then
    call('HSET', PREFIX .. ':r', body, others - 1)
    return
  elseif others == 1 then
    call('HDEL', PREFIX .. ':r', body)
    return
  end
  local number = 0
  while call('UNLINK', PREFIX .. ':b:' .. body .. ':' .. to_text(number)) == 1 do
    number = number + 1
  end
end

-- Append data to a body of `size` bytes.
local function append_body(body, size, data)
  local from = 1
  while from <= #data do
    local number = math.floor(size / CHUNK_SIZE)
    local free = (number + 1) * CHUNK_SIZE - size
    local chunk = string.sub(data, from, from + free - 1)
    call('APPEND', PREFIX .. ':b:' .. body .. ':' .. to_text(number), chunk)
    size, from = size + #chunk, from + #chunk
  end
end

-- Add an entry's indexed fields to their indexes ('ZADD'), or remove them ('ZREM'). `tokens` is a sequence of `<number
-- of the field> <length> <bytes>`.
local function update_field_index(tokens, command, id)
  local at = 1
  while at <= #tokens do
    local field, length, start = string.match(tokens, '^(%d+) (%d+) ()', at)
    local member = string.sub(tokens, start, start + length - 1) .. '\0' .. id
    if command == 'ZADD' then
      call('ZADD', PREFIX .. ':i:' .. field, 0, member)
    else
      call('ZREM', PREFIX .. ':i:' .. field, member)
    end
    at = start + length
  end
end

-- While history is on, a change keeps the record that it replaces, and its body. Not of hidden namespaces, whose
-- labels begin with '.holdall.': what is there has a past of its own, as the checkpoints of a thread do.
local HIDDEN = '__holdall__\1'
local function is_kept(id, old)
  return history and old and old.kind == 'p' and string.sub(id, 1, #HIDDEN) ~= HIDDEN
    and not string.find('\1' .. split_id(id), '\1.holdall.', 1, true)
end

-- Keep a record that `new` replaces. A record that was written before this script has its parts in its key. What is
-- kept is a list: the head (1), value (2), search fields (3), time (4) and author (5) of the old record; and the
-- version (6), kind (7), time (8) and author (9) of the change that replaced it. `put_plain.lua` does the same.
local function keep_old(id, old, new)
  local found = call('HMGET', PREFIX .. ':e:' .. id, 'd', 'x', 'a', 'c')
  local is_stored = old.acting == nil
  local packed = cmsgpack.pack({
    format_head(old), old.value or found[1], old.paths or found[2] or '',
    old.changed or (is_stored and found[4]) or old.updated, is_stored and found[3] or old.acting or '',
    to_text(new.version), new.kind, new.updated, new.acting or '',
  })
  call('ZADD', PREFIX .. ':h:' .. id, old.version, packed)
  call('ZADD', PREFIX .. ':hc', new.version, to_text(new.version) .. ' ' .. id)
  call('ZADD', PREFIX .. ':hp', 0, id)
end

-- Remove the oldest record that is kept of an entry, and release its body.
local function drop_oldest(id)
  local packed = call('ZRANGE', PREFIX .. ':h:' .. id, 0, 0)[1]
  local old = cmsgpack.unpack(packed)
  call('ZREM', PREFIX .. ':h:' .. id, packed)
  call('ZREM', PREFIX .. ':hc', old[6] .. ' ' .. id)
  if call('EXISTS', PREFIX .. ':h:' .. id) == 0 then
    call('ZREM', PREFIX .. ':hp', id)
  end
  local body = parse_head(old[1]).body
  if body ~= '-' then
    release_body(body)
  end
end

-- Replace the stored record `old` (nil: there is none) with `new`, in every index. `new` is nil to remove the record. A
-- new entry may have `value`, `paths` (its search fields), `tokens` (its indexed fields) and `vectors`. A part that is
-- nil stays as it is stored. Returns the head of `new`. `put_plain.lua` does the same for an item without all these.
local function store_record(id, old, new, is_kept_already)
  local key = PREFIX .. ':e:' .. id
  local is_change = new and (not old or old.version ~= new.version)
  if is_change and not is_kept_already and is_kept(id, old) then
    keep_old(id, old, new)
  end
  local ns, name = split_id(id)
  local was_entry, is_entry = old and old.kind == 'p', new and new.kind == 'p'
  if was_entry and not is_entry then
    call('ZREM', PREFIX .. ':p', id)
    call('ZREM', PREFIX .. ':n:' .. ns, name)
    if call('EXISTS', PREFIX .. ':n:' .. ns) == 0 then
      call('ZREM', PREFIX .. ':s', ns)
    end
  elseif is_entry then
    if not was_entry then
      call('ZADD', PREFIX .. ':p', 0, id)
      call('ZADD', PREFIX .. ':s', 0, ns)
    end
    if not was_entry or old.version ~= new.version then
      call('ZADD', PREFIX .. ':n:' .. ns, new.version, name)
    end
  end
  -- The order of creation is kept only where a search has asked for neighbours.
  if keeps_order then
    local before, after = was_entry and old.created, is_entry and new.created
    if before and before ~= after then
      call('ZREM', PREFIX .. ':o:' .. ns, member_of(before, name))
    end
    if after and before ~= after then
      call('ZADD', PREFIX .. ':o:' .. ns, 0, member_of(after, name))
    end
  end
  local was_file, is_file = was_entry and old.size ~= '-', is_entry and new.size ~= '-'
  if was_file and not is_file then
    call('ZREM', PREFIX .. ':f', id)
  elseif is_file and not was_file then
    call('ZADD', PREFIX .. ':f', 0, id)
  end
  local old_expiry, new_expiry = was_entry and old.expires or '-', is_entry and new.expires or '-'
  if new_expiry ~= '-' then
    if old_expiry ~= new_expiry then
      call('ZADD', PREFIX .. ':x', new_expiry, id)
    end
  elseif old_expiry ~= '-' then
    call('ZREM', PREFIX .. ':x', id)
  end
  -- An entry has indexed fields only where some are declared.
  if was_entry and fields_stamp and (new == nil or new.tokens or not is_entry) then
    local tokens = call('HGET', key, 'i')
    if tokens then
      update_field_index(tokens, 'ZREM', id)
      call('HDEL', key, 'i')
    end
  end
  if was_entry and old.model ~= '-' and not (is_entry and new.model == old.model and not new.vectors) then
    call('ZREM', PREFIX .. ':w:' .. old.model, id)
    call('DEL', PREFIX .. ':v:' .. id)
  end
  if new == nil then
    call('DEL', key)
    call('ZREM', PREFIX .. ':c', id)
    call('ZREM', PREFIX .. ':t', id)
    return
  end
  if not old or old.version ~= new.version then
    call('ZADD', PREFIX .. ':c', new.version, id)
  end
  local head = format_head(new)
  if not is_entry then
    call('ZADD', PREFIX .. ':t', new.version, id)
    call('DEL', key)
    call('HSET', key, 'h', head)
    if new.acting and new.acting ~= '' then
      call('HSET', key, 'a', new.acting)
    end
    return head
  end
  if old and not was_entry then
    call('ZREM', PREFIX .. ':t', id)
  end
  if is_change and was_entry then
    call('HDEL', key, 'a', 'c')
  end
  if is_change and new.acting and new.acting ~= '' then
    call('HSET', key, 'a', new.acting)
  end
  if new.changed then
    call('HSET', key, 'c', new.changed)
  end
  if new.value then
    call('HSET', key, 'h', head, 'd', new.value)
  else
    call('HSET', key, 'h', head)
  end
  if new.paths then
    if new.paths == '' then
      if was_entry then
        call('HDEL', key, 'x')
      end
    else
      call('HSET', key, 'x', new.paths)
    end
  end
  if new.tokens and new.tokens ~= '' then
    call('HSET', key, 'i', new.tokens)
    update_field_index(new.tokens, 'ZADD', id)
  end
  if new.vectors then
    call('HSET', PREFIX .. ':v:' .. id, 'v', new.version, 'n', new.vectors.n, 'd', new.vectors.d)
    local number = next_number(call('HGET', PREFIX, 'w'))
    call('HSET', PREFIX, 'w', number)
    call('ZADD', PREFIX .. ':w:' .. new.model, number, id)
  end
  return head
end

local function make_tombstone(old, version, kind, time, acting)
  return {
    acting = acting or '',
    version = version, created = old.created, updated = time, expires = '-', ttl = '-',
    kind = kind, size = '-', appended = '-', body = '-', model = '-',
  }
end

-- Replace a stored entry with its tombstone, and release its body.
local function replace_with_tombstone(id, old, version, kind, time, acting)
  store_record(id, old, make_tombstone(old, version, kind, time, acting))
  if old.body ~= '-' and not is_kept(id, old) then
    release_body(old.body)
  end
end

-- Save the last version and notify the listeners. This is the last step. Publishing may fail, because the data is
-- written already.
local function finish_write()
  call('HSET', PREFIX, 'v', last_version)
  if first_version and not stored_version and shard_count == 1 then -- after a flush, earlier changes are not known
    call('HSET', PREFIX, 'f', to_text(first_version - 1))
  end
  redis.pcall(shard_count > 1 and 'SPUBLISH' or 'PUBLISH', PREFIX .. ':feed', '')
end

