-- What all scripts begin with: one shard, its clock, its records. The layout of the keys is told in engines/redis.py.
--
-- KEYS[1] is the shard's own hash, and what all its keys begin with. ARGV[1] is the time in microseconds, '' for the
-- server's. Times and lengths of time are decimal texts: beyond 2^53, a number of Lua's is not exact.

local P = KEYS[1]
local call = redis.call

local now = ARGV[1]
if now == '' then
  local time = call('TIME')
  now = time[1] .. string.format('%06d', time[2])
end
local now_number = tonumber(now)

local LARGE = 9e15

-- A whole number as text; `..` would round it.
local function fmt(number)
  return string.format('%.0f', number)
end

local function plus(a, b)
  local sum = tonumber(a) + tonumber(b)
  if sum < LARGE then
    return fmt(sum)
  end
  local low = tonumber(string.sub(a, -6)) + tonumber(string.sub(b, -6))
  local high = (tonumber(string.sub(a, 1, -7)) or 0) + (tonumber(string.sub(b, 1, -7)) or 0)
  if low >= 1000000 then
    low, high = low - 1000000, high + 1
  end
  return string.format('%.0f%06d', high, low)
end

-- Whether a moment has come; '-' is never.
local function due(moment)
  if moment == '-' then
    return false
  end
  local number = tonumber(moment)
  if number < LARGE or now_number < LARGE then
    return number <= now_number
  end
  return #moment < #now or (#moment == #now and moment <= now)
end

-- A record's head as a table. `k` is p(ut), d(elete) or e(xpire); what is not there is '-'.
local function parse(head)
  local v, c, u, e, t, k, s, a, b, m = string.match(
    head, '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+)$')
  return { v = tonumber(v), c = c, u = u, e = e, t = t, k = k, s = s, a = a, b = b, m = m }
end

local function head_of(r)
  return table.concat({ fmt(r.v), r.c, r.u, r.e, r.t, r.k, r.s, r.a, r.b, r.m }, ' ')
end

-- Trees that were deleted and are not cleared away yet: of what lies between `low` and `high`, all up to version `v`
-- is gone.
local meta = call('HMGET', P, 'v', 'g', 'x')
local last = tonumber(meta[1] or '0')
local trees = {}
if meta[2] and meta[2] ~= '0' then
  for _, text in ipairs(call('LRANGE', P .. ':g', 0, -1)) do
    trees[#trees + 1] = cmsgpack.unpack(text)
  end
end

-- Whether one text comes before another, byte by byte: `<` asks the locale.
local function less(a, b)
  for at = 1, math.min(#a, #b) do
    local x, y = string.byte(a, at), string.byte(b, at)
    if x ~= y then
      return x < y
    end
  end
  return #a < #b
end

local function is_within(place, low, high)
  return not less(place, low) and less(place, high)
end

local function is_gone(place, r)
  for _, tree in ipairs(trees) do
    if r.v <= tree.v and (tree.index == 'p' or r.s ~= '-') and is_within(place, tree.low, tree.high) then
      return true
    end
  end
  return false
end

local function is_live(place, r)
  return r.k == 'p' and not due(r.e) and not (trees[1] and is_gone(place, r))
end

local CHUNK = 1048576

-- The bytes [start, finish) of a body; an error where they are not all there.
local function read_body(body, start, finish)
  if finish <= start then
    return ''
  end
  local parts = {}
  for number = math.floor(start / CHUNK), math.floor((finish - 1) / CHUNK) do
    local at = number * CHUNK
    parts[#parts + 1] = call('GETRANGE', P .. ':b:' .. body .. ':' .. fmt(number),
      fmt(math.max(start - at, 0)), fmt(math.min(finish - at, CHUNK) - 1))
  end
  local found = #parts == 1 and parts[1] or table.concat(parts)
  if #found ~= finish - start then
    error('INCOMPLETE body ' .. body)
  end
  return found
end

local function split(place)
  local at = string.find(place, '\0', 1, true)
  return string.sub(place, 1, at - 1), string.sub(place, at + 1)
end

