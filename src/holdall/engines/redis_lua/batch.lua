-- Point ops, in order, as one transaction. Each is judged on what the ops before it have left, which is kept aside in
-- tables; nothing is written before all have passed, and then nothing can fail any more.
--
-- ARGV[4] names the client, '' where nothing is written, ARGV[5] the place where it remembers its last batch, and
-- ARGV[6] the number of this one: asked again, it answers again. ARGV[7] says which fields the client knows to be
-- indexed, ARGV[8] for how many seconds it may be silent, '' for as said before; ARGV[9] of how many entries a
-- tree is deleted one by one. The ops follow: a letter, then what each takes.

local client, slot, number = ARGV[4], ARGV[5], tonumber(ARGV[6])
local memory = P .. ':d:' .. client
if client ~= '' then
  local known = call('HGET', memory, slot)
  if known then
    local before, answer = string.match(known, '^(%d+) (.*)$')
    before = tonumber(before)
    if before == number then
      return cmsgpack.unpack(answer)
    elseif before > number then
      return { 'late' }
    end
  end
  if (meta[3] or '') ~= ARGV[7] then
    return { 'fields' }
  end
end

local began = last
local over, olds, order = {}, {}, {} -- by place: as the batch leaves it, as it is stored; and which of them it changed
local bodies = {} -- by name: `base` bytes are stored, and `text` follows
local new_trees = {}
local abort -- what to tell instead

local function find(place)
  local r = over[place]
  if r == nil then
    local head = call('HGET', P .. ':e:' .. place, 'h')
    r = head and parse(head) or false
    over[place], olds[place] = r, r
  end
  return r
end

local function live(place)
  local r = find(place)
  return r and is_live(place, r) and r or nil
end

local function live_file(place)
  local r = live(place)
  return r and r.s ~= '-' and r or nil
end

local changed = {}
local function write(place, r)
  find(place)
  over[place] = r
  if not changed[place] then
    changed[place] = true
    order[#order + 1] = place
  end
end

local function copy(r)
  local made = {}
  for name, value in pairs(r) do
    made[name] = value
  end
  return made
end

local function fresh_body(text)
  local name = fmt(last)
  bodies[name] = { base = 0, text = text, is_fresh = true }
  return name
end

local function content(r, start, finish)
  local size = tonumber(r.s)
  start, finish = math.min(start, size), math.min(finish or size, size)
  local body = bodies[r.b]
  if not body then
    return read_body(r.b, start, finish)
  end
  local text = string.sub(body.text, math.max(start - body.base, 0) + 1, math.max(finish - body.base, 0))
  return start < body.base and read_body(r.b, start, math.min(finish, body.base)) .. text or text
end

local function length(name, size)
  local body = bodies[name]
  if body then
    return body.base + #body.text
  end
  local number = math.floor(size / CHUNK)
  return number * CHUNK + call('STRLEN', P .. ':b:' .. name .. ':' .. fmt(number))
end

local function version_text(r)
  return r and fmt(r.v) or '-'
end

local function meets(expect, r)
  return expect == '*' or expect == version_text(r)
end

local function lifetime(ttl, old)
  if ttl == 'k' then
    if old then
      return old.e, old.t
    end
    return '-', '-'
  elseif ttl == '-' then
    return '-', '-'
  end
  return plus(now, ttl), ttl
end

local function drop(place, r)
  write(place, tombstone(r, next_version(), 'd', now))
end

-- The live places of an index between two, in order.
local function among(index, low, high)
  local places, added = {}, false
  local is_one = index == 'p' and live or live_file
  for _, place in ipairs(call('ZRANGEBYLEX', P .. ':' .. index, '[' .. low, '(' .. high)) do
    if is_one(place) then
      places[#places + 1] = place
    end
  end
  for _, place in ipairs(order) do
    local old = olds[place]
    local is_stored = old and old.k == 'p' and (index == 'p' or old.s ~= '-')
    if not is_stored and is_within(place, low, high) and is_one(place) then
      places[#places + 1] = place
      added = true
    end
  end
  if added then
    table.sort(places, less)
  end
  return places
end

local MOST_EXPIRED = 1000 -- that are looked at before somebody has to sweep

-- The first file between two places, or nil.
local function first_file(low, high)
  local found
  local expired = 0
  for _, place in ipairs(order) do
    if is_within(place, low, high) and live_file(place) and (not found or less(place, found)) then
      found = place
    end
  end
  local from = '[' .. low
  while true do
    local page = call('ZRANGEBYLEX', P .. ':f', from, '(' .. (found or high), 'LIMIT', 0, 64)
    for _, place in ipairs(page) do
      if live_file(place) then
        return place
      end
      local old = olds[place]
      expired = expired + (old and old.k == 'p' and due(old.e) and 1 or 0)
    end
    if #page < 64 then
      return found
    elseif expired > MOST_EXPIRED and not trees[1] then
      abort = { 'sweep' }
      return nil
    elseif trees[1] and not new_trees[1] then
      abort = { 'pending' }
      return nil
    end
    from = '(' .. page[64]
  end
end

local MOST = tonumber(ARGV[9]) -- that are deleted one by one

local function delete_tree(index, low, high)
  local stored = call('ZLEXCOUNT', P .. ':' .. index, '[' .. low, '(' .. high)
  if stored <= MOST or new_trees[1] then
    local places = among(index, low, high)
    for _, place in ipairs(places) do
      drop(place, over[place])
    end
    return #places
  end
  local ended = call('ZRANGEBYSCORE', P .. ':x', '-inf', now_number + 8, 'LIMIT', 0, 1001)
  if trees[1] then
    abort = { 'pending' }
    return 0
  elseif #ended > 1000 then
    abort = { 'sweep' }
    return 0
  end
  local count = stored
  for _, place in ipairs(ended) do
    if is_within(place, low, high) and not changed[place] then
      local r = find(place)
      if (index == 'p' or r.s ~= '-') and due(r.e) then
        count = count - 1
      end
    end
  end
  for at = 1, #order do
    local place = order[at]
    if is_within(place, low, high) then
      local old, r = olds[place], over[place]
      if old and old.k == 'p' and (index == 'p' or old.s ~= '-') then
        count = count - 1
      end
      if is_live(place, r) and (index == 'p' or r.s ~= '-') then
        count = count + 1
        drop(place, r)
      end
    end
  end
  local tree = { index = index, low = low, high = high, v = last, next = last, now = now }
  trees[#trees + 1], new_trees[#new_trees + 1] = tree, tree
  last = last + stored * (shard and tonumber(shards) or 1)
  return count
end

local at = 9
local function take()
  at = at + 1
  return ARGV[at]
end

local ops = {}

ops.G = function()
  local place = take()
  local r = over[place]
  local value
  if r == nil then
    local found = call('HMGET', P .. ':e:' .. place, 'h', 'd')
    r = found[1] and parse(found[1]) or false
    over[place], olds[place] = r, r
    value = found[2]
  end
  if not r or not is_live(place, r) then
    return false
  end
  value = value or r.value or call('HGET', P .. ':e:' .. place, 'd')
  return { head_of(r), value, r.s ~= '-' and content(r, 0) or false }
end

ops.P = function()
  local place, value, ttl, expect, paths, tokens = take(), take(), take(), take(), take(), take()
  local size, body, data, model, count, vectors = take(), take(), take(), take(), take(), take()
  local old = live(place)
  if not meets(expect, old) then
    return nil, { 'conflict', version_text(old) }
  end
  local r = { v = next_version(), c = old and old.c or now, u = now, k = 'p', s = size, a = '-', b = body, m = model }
  r.e, r.t = lifetime(ttl, old)
  r.value, r.tokens, r.paths = value, tokens, paths
  if ttl == 'k' and paths == '' and old then
    r.paths = old.paths
    if old.paths == nil then
      r.paths = call('HGET', P .. ':e:' .. place, 'x') or ''
    end
  end
  if size ~= '-' and body == '-' then
    r.b = fresh_body(data)
  elseif size ~= '-' then -- it was sent beforehand, in pieces
    local there = 0
    for number = 0, math.floor((size - 1) / CHUNK) do
      there = there + call('STRLEN', P .. ':b:' .. body .. ':' .. fmt(number))
    end
    if there ~= tonumber(size) then -- the server has lost some of it: it restarted, or evicts
      abort = { 'resend' }
      return false
    end
    bodies[body] = { base = tonumber(size), text = '', is_fresh = true, is_sent = true }
  end
  if model ~= '-' then
    r.vectors = { n = count, d = vectors }
  end
  write(place, r)
  return head_of(r)
end

ops.D = function()
  local place, expect = take(), take()
  local old = live(place)
  if not meets(expect, old) then
    return nil, { 'conflict', version_text(old) }
  end
  if old then
    drop(place, old)
  end
  return old and 1 or 0
end

ops.C = function()
  local place, expect = take(), take()
  local old = live(place)
  if not meets(expect, old) then
    return nil, { 'conflict', version_text(old) }
  end
  return false
end

ops.F = function()
  local place = take()
  local old = live(place)
  if not old or old.t == '-' then
    return 0
  end
  local r = copy(old)
  r.e = plus(now, r.t)
  write(place, r)
  return 1
end

ops.B = function()
  local place, created, updated, expires = take(), take(), take(), take()
  local old = live(place)
  if not old then
    return 0
  end
  local r = copy(old)
  r.c, r.u = created, updated
  if expires ~= '-' then
    r.e = expires
  end
  write(place, r)
  return 1
end

ops.I = function()
  local place = take()
  local r = live(place)
  if not r then
    return false
  end
  local paths = r.paths or call('HGET', P .. ':e:' .. place, 'x')
  return paths and paths ~= '' and paths or false
end

ops.E = function()
  local place, version, model, count, vectors = take(), take(), take(), take(), take()
  local old = live(place)
  if not old or fmt(old.v) ~= version then
    return 0
  end
  local r = copy(old)
  r.m, r.vectors = model, { n = count, d = vectors }
  write(place, r)
  return 1
end

ops.A = function()
  local place, data, expect, ttl, shape = take(), take(), take(), take(), take()
  local old = live(place)
  if not meets(expect, old) then
    return nil, { 'conflict', version_text(old) }
  end
  if not old then
    local r = { v = next_version(), c = now, u = now, k = 'p', s = tostring(#data), a = '-', m = '-' }
    r.e, r.t = lifetime(ttl, nil)
    r.value, r.tokens, r.paths, r.b = shape, '', '', fresh_body(data)
    write(place, r)
    return '0'
  end
  if old.s == '-' then
    return nil, { 'item' }
  end
  local r, size = copy(old), tonumber(old.s)
  r.v, r.u, r.s, r.a, r.m, r.vectors = next_version(), now, fmt(size + #data), '1', '-', nil
  if length(old.b, size) == size then -- the first to grow keeps what others share
    local body = bodies[old.b]
    if not body then
      body = { base = size, text = '' }
      bodies[old.b] = body
    end
    body.text = body.text .. data
  else
    r.b = fresh_body(content(old, 0) .. data)
  end
  write(place, r)
  return old.s
end

ops.R = function()
  local place, start, finish = take(), tonumber(take()), tonumber(take())
  local r = live_file(place)
  return r and content(r, start, finish) or false
end

ops.S = function()
  local place, low, high = take(), take(), take()
  local r = live_file(place)
  if r then
    return head_of(r)
  end
  return first_file(low, high) and 1 or false
end

local function check_path(parents, low, high)
  for _, place in ipairs(parents) do
    if live_file(place) then
      return place
    end
  end
  return first_file(low, high)
end

local function take_parents()
  local parents = {}
  for count = 1, tonumber(take()) do
    parents[count] = take()
  end
  return parents
end

ops.K = function()
  local low, high = take(), take()
  local blocking = check_path(take_parents(), low, high)
  if blocking then
    return nil, { 'blocked', blocking }
  end
  return false
end

ops.T = function()
  local index, place, low, high = take(), take(), take(), take()
  local count = 0
  if place ~= '' then
    local r = live_file(place)
    if r then
      drop(place, r)
      count = 1
    end
  end
  return count + delete_tree(index, low, high)
end

-- Move and copy: what is meant is at `src` or between `src_low` and `src_high`.
local function transfer(is_move)
  local src, src_low, src_high, dst, dst_low, dst_high = take(), take(), take(), take(), take(), take()
  local ttl, is_elsewhere, parents = take(), take() == '1', take_parents()
  if trees[1] and not new_trees[1] then
    abort = { 'pending' }
    return false
  end
  local function tree(place, low, high)
    local places = among('f', low, high)
    if live_file(place) then
      table.insert(places, 1, place)
    end
    return places
  end
  local sources = tree(src, src_low, src_high)
  if src ~= dst or not sources[1] then
    local there = tree(dst, dst_low, dst_high)
    local long
    local _, dst_key = split(dst)
    for _, place in ipairs(sources) do
      if #dst_key + #place - #src > 1536 then
        long = place
        break
      end
    end
    if not sources[1] or long or there[2] or (there[1] and (there[1] ~= dst or sources[2] or sources[1] ~= src)) then
      return nil, { 'transfer', sources[1] or '', sources[2] or '', long or '', there[1] or '', there[2] or '' }
    end
    local blocking = check_path(parents, dst_low, dst_high)
    if blocking then
      return nil, { 'blocked', blocking }
    end
    for _, place in ipairs(sources) do
      local old = over[place]
      local target = dst .. string.sub(place, #src + 1)
      local r = copy(old)
      if r.value == nil then
        local found = call('HMGET', P .. ':e:' .. place, 'd', 'x')
        r.value = found[1]
        r.paths = r.paths or found[2] or ''
      end
      if r.m ~= '-' and not r.vectors then
        local found = call('HMGET', P .. ':v:' .. place, 'n', 'd')
        r.vectors = { n = found[1], d = found[2] }
      end
      r.tokens = r.tokens or ''
      r.v, r.u = next_version(), now
      if is_move then
        drop(place, old)
        if is_elsewhere then
          local replaced = live(target)
          r.c = replaced and replaced.c or now
        end
        if ttl ~= 'k' then
          r.e, r.t = lifetime(ttl, nil)
        end
      else
        r.c = now
      end
      write(target, r)
    end
  end
  local r = live_file(dst)
  return r and head_of(r) or 1
end

ops.M = function() return transfer(true) end
ops.Y = function() return transfer(false) end

local results, done = {}, 0
while at < #ARGV do
  local result, refusal = ops[take()]()
  if abort then
    return abort
  elseif refusal then
    return { 'refused', done, unpack(refusal) }
  end
  done = done + 1
  results[done] = result
end
local answer = { 'ok', results, fmt(last) }
if client == '' then
  return answer
end

-- From here on everything is written, and nothing is judged. A full server refuses a first write that takes room: not one
-- of a batch that makes room, so that begins with one that takes none.
local is_clearing = order[1] or new_trees[1]
for _, place in ipairs(order) do
  is_clearing = is_clearing and over[place].k == 'd'
end
if is_clearing then
  call('DEL', P .. ':none')
end
local references = {}
local function refer(name, by)
  if name ~= '-' then
    references[name] = (references[name] or 0) + by
  end
end
for _, place in ipairs(order) do
  local old, r = olds[place], over[place]
  if old then
    refer(old.b, -1)
  end
  refer(r.b, 1)
  store(place, old or nil, r)
end
for name, body in pairs(bodies) do
  local count = references[name] or 0
  if not body.is_fresh then
    append_body(name, body.base, body.text)
  elseif count > 0 then
    append_body(name, body.base, body.text)
    if body.is_sent then
      for chunk = 0, math.floor(body.base / CHUNK) do
        call('PERSIST', P .. ':b:' .. name .. ':' .. fmt(chunk))
      end
    end
  end
  if body.is_fresh then
    references[name] = count - 1
  end
end
for name, by in pairs(references) do
  if by > 0 then
    call('HINCRBY', P .. ':r', name, by)
  end
  local is_unused = bodies[name] and bodies[name].is_fresh and by < 0
  for _ = 1, is_unused and 0 or -by do
    release(name)
  end
end
for _, tree in ipairs(new_trees) do
  call('RPUSH', P .. ':g', cmsgpack.pack(tree))
  call('HINCRBY', P, 'g', 1)
end
if order[1] or new_trees[1] then
  local packed = cmsgpack.pack(answer)
  if #packed > 65536 then
    packed = cmsgpack.pack({ 'done' })
  end
  call('HSET', memory, slot, fmt(number) .. ' ' .. packed)
  if ARGV[8] ~= '' then
    call('EXPIRE', memory, ARGV[8])
  end
  if last ~= began then
    tell()
  end
end
return answer
