-- List entries as they were at a moment, in key order: IDs from ARGV[2] to ARGV[3] (in the form of ZRANGEBYLEX), of
-- which at most ARGV[4] are looked at. ARGV[5] is 't' for a time, 'p' for a version, ARGV[6] the moment. Returns IDs
-- and heads, where to go on ('' for the end), the setting of the history, and the last version that ended a purged
-- record.

local limit, by_time, moment = tonumber(ARGV[4]), ARGV[5] == 't', tonumber(ARGV[6])

local function is_unexpired(record)
  return record.expires == '-' or tonumber(record.expires) > moment
end

local function find_at(id)
  local found = call('HMGET', PREFIX .. ':e:' .. id, 'h', 'c')
  local record = found[1] and parse_head(found[1])
  if record and record.kind == 'p' then
    if not by_time and record.version <= moment then
      return found[1]
    elseif by_time and tonumber(found[2] or record.updated) <= moment and is_unexpired(record) then
      return found[1]
    end
  end
  if not by_time then
    local packed = call('ZREVRANGEBYSCORE', PREFIX .. ':h:' .. id, ARGV[6], '-inf', 'LIMIT', 0, 1)[1]
    local old = packed and cmsgpack.unpack(packed)
    return old and tonumber(old[6]) > moment and old[1] or nil
  end
  local at = 0
  while true do
    local page = call('ZREVRANGE', PREFIX .. ':h:' .. id, at, at + 15)
    for _, packed in ipairs(page) do
      local old = cmsgpack.unpack(packed)
      if tonumber(old[8]) <= moment then
        return nil
      elseif tonumber(old[4]) <= moment and is_unexpired(parse_head(old[1])) then
        return old[1]
      end
    end
    if #page < 16 then
      return nil
    end
    at = at + 16
  end
end

-- The first IDs of both indexes; after the last one of the index that ends first, both have to be read again.
local ids, is_found, last = {}, {}, nil
for _, index in ipairs({ ':p', ':hp' }) do
  local page = call('ZRANGEBYLEX', PREFIX .. index, ARGV[2], ARGV[3], 'LIMIT', 0, limit)
  for _, id in ipairs(page) do
    if not is_found[id] then
      is_found[id] = true
      ids[#ids + 1] = id
    end
  end
  if #page == limit and (not last or is_before(page[limit], last)) then
    last = page[limit]
  end
end
table.sort(ids, is_before)
local heads = {}
for _, id in ipairs(ids) do
  if last and is_before(last, id) then
    break
  end
  local head = find_at(id)
  if head then
    heads[#heads + 1] = { id, head }
  end
end
return { 'ok', heads, last and '(' .. last or '', history, call('HGET', PREFIX, 'hp') or '0' }
