-- What scripts that write share: how a record becomes the next one, in all indexes. ARGV[2] is how versions are
-- counted: '' one by one, else the number of the shard and how many there are; ARGV[3] a version that is to be exceeded.

local shard, shards = string.match(ARGV[2], '^(%d+)/(%d+)$')

local function next_version()
  if not shard then
    last = last + 1
    return last
  end
  -- Of many shards: the time, in steps as wide as there are shards, so that each has numbers of its own.
  local time = call('TIME')
  local width = tonumber(shards)
  local floor = math.max(last, tonumber(ARGV[3]) or 0, time[1] * 1000000 + time[2] - width)
  last = (math.floor(floor / width) + 1) * width + tonumber(shard)
  return last
end

-- The number after one that was given before: the time, so that none comes again after all was flushed, or some was lost.
local function numbered(before)
  local time = call('TIME')
  return fmt(math.max(tonumber(before or '0') + 1, time[1] * 1000000 + time[2]))
end

local function release(body)
  local others = tonumber(call('HGET', P .. ':r', body) or '0')
  if others > 1 then
    call('HSET', P .. ':r', body, others - 1)
    return
  elseif others == 1 then
    call('HDEL', P .. ':r', body)
    return
  end
  local number = 0
  while call('UNLINK', P .. ':b:' .. body .. ':' .. fmt(number)) == 1 do
    number = number + 1
  end
end

local function append_body(body, at, data)
  local from = 1
  while from <= #data do
    local number = math.floor(at / CHUNK)
    local room = (number + 1) * CHUNK - at
    local piece = string.sub(data, from, from + room - 1)
    call('APPEND', P .. ':b:' .. body .. ':' .. fmt(number), piece)
    at, from = at + #piece, from + #piece
  end
end

-- Fields that are indexed, as `id <length> bytes` one after the other: call a command for each.
local function each_field(tokens, command, place)
  local at = 1
  while at <= #tokens do
    local id, length, value = string.match(tokens, '^(%d+) (%d+) ()', at)
    local token = string.sub(tokens, value, value + length - 1)
    if command == 'ZADD' then
      call('ZADD', P .. ':i:' .. id, 0, token .. '\0' .. place)
    else
      call('ZREM', P .. ':i:' .. id, token .. '\0' .. place)
    end
    at = value + length
  end
end

-- Make `new` what is stored at a place where `old` is (nil: nothing), in every index. `new` may have `value`, `paths`,
-- `tokens` (its indexed fields) and `vectors`; a tombstone has none, and nil in place of it leaves nothing at all.
local function store(place, old, new)
  local key = P .. ':e:' .. place
  local ns, name = split(place)
  local was, is = old and old.k == 'p', new and new.k == 'p'
  if was and not is then
    call('ZREM', P .. ':p', place)
    call('ZREM', P .. ':n:' .. ns, name)
    if call('EXISTS', P .. ':n:' .. ns) == 0 then
      call('ZREM', P .. ':s', ns)
    end
  elseif is then
    if not was then
      call('ZADD', P .. ':p', 0, place)
      call('ZADD', P .. ':s', 0, ns)
    end
    if not was or old.v ~= new.v then
      call('ZADD', P .. ':n:' .. ns, new.v, name)
    end
  end
  local was_file, is_file = was and old.s ~= '-', is and new.s ~= '-'
  if was_file and not is_file then
    call('ZREM', P .. ':f', place)
  elseif is_file and not was_file then
    call('ZADD', P .. ':f', 0, place)
  end
  local ended, ends = was and old.e or '-', is and new.e or '-'
  if ends ~= '-' then
    if ended ~= ends then
      call('ZADD', P .. ':x', ends, place)
    end
  elseif ended ~= '-' then
    call('ZREM', P .. ':x', place)
  end
  if was and (new == nil or new.tokens or not is) then
    local tokens = call('HGET', key, 'i')
    if tokens then
      each_field(tokens, 'ZREM', place)
      call('HDEL', key, 'i')
    end
  end
  if was and old.m ~= '-' and not (is and new.m == old.m and not new.vectors) then
    call('ZREM', P .. ':w:' .. old.m, place)
    call('DEL', P .. ':v:' .. place)
  end
  if new == nil then
    call('DEL', key)
    call('ZREM', P .. ':c', place)
    call('ZREM', P .. ':t', place)
    return
  end
  if not old or old.v ~= new.v then
    call('ZADD', P .. ':c', new.v, place)
  end
  if not is then
    call('ZADD', P .. ':t', new.v, place)
    call('DEL', key)
    call('HSET', key, 'h', head_of(new))
    return
  end
  if old and not was then
    call('ZREM', P .. ':t', place)
  end
  if new.value then
    call('HSET', key, 'h', head_of(new), 'd', new.value)
  else
    call('HSET', key, 'h', head_of(new))
  end
  if new.paths then
    if new.paths == '' then
      call('HDEL', key, 'x')
    else
      call('HSET', key, 'x', new.paths)
    end
  end
  if new.tokens and new.tokens ~= '' then
    call('HSET', key, 'i', new.tokens)
    each_field(new.tokens, 'ZADD', place)
  end
  if new.vectors then
    call('HSET', P .. ':v:' .. place, 'v', new.v, 'n', new.vectors.n, 'd', new.vectors.d)
    local number = numbered(call('HGET', P, 'w'))
    call('HSET', P, 'w', number)
    call('ZADD', P .. ':w:' .. new.m, number, place)
  end
end

local function tombstone(old, version, kind, time)
  return { v = version, c = old.c, u = time, e = '-', t = '-', k = kind, s = '-', a = '-', b = '-', m = '-' }
end

-- Turn what is stored into a tombstone, body and all.
local function bury(place, old, version, kind, time)
  store(place, old, tombstone(old, version, kind, time))
  if old.b ~= '-' then
    release(old.b)
  end
end

-- Last of all, and it may not fail: what was written is written, whether or not those who listen may be told.
local function tell()
  call('HSET', P, 'v', last)
  redis.pcall(shard and 'SPUBLISH' or 'PUBLISH', P .. ':feed', '')
end

