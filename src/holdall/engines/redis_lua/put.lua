-- One put of an item, the most frequent write of all, without what only other ops need. ARGV[1] to ARGV[8] are those of
-- batch.lua; the namespace, key, value, ttl, expectation and paths follow. Where more is to be done than this knows of, the
-- answer is 'more', and nothing is written.

local P, call = KEYS[1], redis.call
local memory, number = P .. ':d:' .. ARGV[4], tonumber(ARGV[6])
local ns, ttl, expect, paths = ARGV[9], ARGV[12], ARGV[13], ARGV[14]
local place = ns .. '\0' .. ARGV[10]
local key = P .. ':e:' .. place

local known = call('HGET', memory, ARGV[5])
if known then
  local before, answer = string.match(known, '^(%d+) (.*)$')
  before = tonumber(before)
  if before == number then
    return { 'ok', answer }
  elseif before > number then
    return { 'late' }
  end
end
local meta = call('HMGET', P, 'v', 'g', 'x')
if (meta[2] and meta[2] ~= '0') or (meta[3] or '') ~= ARGV[7] or ARGV[7] ~= '' then
  return { 'more' }
end
local now, time = ARGV[1], nil
if now == '' then
  time = call('TIME')
  now = string.format('%s%06d', time[1], time[2])
end
local was, created, ended, lifetime, old = nil, now, '-', '-', call('HGET', key, 'h')
local kind
if old then
  local size, model, version, began
  version, began, ended, lifetime, kind, size, model = string.match(
    old, '^(%S+) (%S+) %S+ (%S+) (%S+) (%S+) (%S+) %S+ %S+ (%S+)$')
  if size ~= '-' or model ~= '-' or (ended ~= '-' and tonumber(ended) > 9e15) or tonumber(now) > 9e15 then
    return { 'more' }
  end
  if kind == 'p' and (ended == '-' or tonumber(ended) > tonumber(now)) then
    was, created = version, began
  end
end
if expect ~= '*' and expect ~= (was or '-') then
  return { 'refused', 0, 'conflict', was or '-' }
end
local expires, lives = '-', '-'
if ttl == 'k' then
  if was then
    expires, lives = ended, lifetime
  end
elseif ttl ~= '-' then
  local sum = tonumber(now) + tonumber(ttl)
  if sum > 9e15 then
    return { 'more' }
  end
  expires, lives = string.format('%.0f', sum), ttl
end
local last = tonumber(meta[1] or '0')
if ARGV[2] == '' then
  last = last + 1
else
  local shard, width = string.match(ARGV[2], '^(%d+)/(%d+)$')
  time = time or call('TIME')
  local floor = math.max(last, tonumber(ARGV[3]) or 0, time[1] * 1000000 + time[2] - width)
  last = (math.floor(floor / width) + 1) * width + shard
end
local version = string.format('%.0f', last)
local head = table.concat({ version, created, now, expires, lives, 'p - - - -' }, ' ')

-- From here on everything is written, and nothing is judged.
call('HSET', P, 'v', version)
if paths ~= '' then
  call('HSET', key, 'h', head, 'd', ARGV[11], 'x', paths)
else
  call('HSET', key, 'h', head, 'd', ARGV[11])
  if kind == 'p' and not (was and ttl == 'k') then
    call('HDEL', key, 'x')
  end
end
if kind ~= 'p' then
  call('ZADD', P .. ':p', 0, place)
  call('ZADD', P .. ':s', 0, ns)
  if kind then
    call('ZREM', P .. ':t', place)
  end
end
call('ZADD', P .. ':n:' .. ns, version, ARGV[10])
call('ZADD', P .. ':c', version, place)
if expires ~= '-' then
  call('ZADD', P .. ':x', expires, place)
elseif kind == 'p' and ended ~= '-' then
  call('ZREM', P .. ':x', place)
end
call('HSET', memory, ARGV[5], string.format('%.0f %s', number, head))
if ARGV[8] ~= '' then
  call('EXPIRE', memory, ARGV[8])
end
redis.pcall(ARGV[2] == '' and 'PUBLISH' or 'SPUBLISH', P .. ':feed', '')
return { 'ok', head }
