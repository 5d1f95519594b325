-- Measure up to ARGV[4] entries (ARGV[2] is 'p') or entries with old records ('hp') from ARGV[3] on. ARGV[5] begins the
-- IDs of holdall's own entries, of which only leases count: their namespaces contain ARGV[6]. Returns the number of
-- vectors, of leases that are held, where to go on ('' for the end), and the first label of each namespace with the
-- bytes of values and contents.

local index, limit = ARGV[2], tonumber(ARGV[4])
local ids = call('ZRANGEBYLEX', PREFIX .. ':' .. index, ARGV[3], '+', 'LIMIT', 0, limit)
local vectors, leases, sizes = 0, 0, {}
local function add(id, size)
  local root = string.match(id, '^[^\1]*\1')
  sizes[root] = (sizes[root] or 0) + size
end
for _, id in ipairs(ids) do
  if index == 'hp' then
    for _, packed in ipairs(call('ZRANGE', PREFIX .. ':h:' .. id, 0, -1)) do
      local old = cmsgpack.unpack(packed)
      add(id, #old[2] + (tonumber(parse_head(old[1]).size) or 0))
    end
  else
    local head = call('HGET', PREFIX .. ':e:' .. id, 'h')
    local record = head and parse_head(head)
    if record and is_live(id, record) then
      if string.sub(id, 1, #ARGV[5]) == ARGV[5] then
        leases = leases + (string.find(id, ARGV[6], 1, true) and 1 or 0)
      else
        add(id, call('HSTRLEN', PREFIX .. ':e:' .. id, 'd') + (tonumber(record.size) or 0))
        vectors = vectors + (tonumber(record.model ~= '-' and call('HGET', PREFIX .. ':v:' .. id, 'n') or 0) or 0)
      end
    end
  end
end
local found = {}
for root, size in pairs(sizes) do
  found[#found + 1] = root
  found[#found + 1] = to_text(size)
end
return { 'ok', to_text(vectors), to_text(leases), ids[limit] and '(' .. ids[limit] or '', found }
