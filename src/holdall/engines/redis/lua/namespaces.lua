-- List namespaces that have entries, from ARGV[2] to ARGV[3] (in the form of ZRANGEBYLEX), at most ARGV[4]. Of
-- namespaces with the same first ARGV[5] labels, only the first is listed ('' lists all). Returns them, and where to go
-- on, '' for the end; or 'sweep' if many entries have expired.

local from, to, limit, depth = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

local expired = 0
local function has_live_entry(ns)
  if not has_expired then
    return true
  end
  local start = 0
  while true do
    local page = call('ZRANGE', PREFIX .. ':n:' .. ns, start, start + 63)
    for _, name in ipairs(page) do
      local id = ns .. '\0' .. name
      if is_live(id, parse_head(call('HGET', PREFIX .. ':e:' .. id, 'h'))) then
        return true
      end
    end
    expired = expired + #page
    if #page < 64 or expired > MOST_EXPIRED then
      return false
    end
    start = start + 64
  end
end

-- Return the start of the range after a namespace, and after all others with the same first labels. '\1' ends a label.
local function next_start(ns)
  local at = 0
  for _ = 1, depth or 0 do
    at = string.find(ns, '\1', at + 1, true)
    if not at then
      break
    end
  end
  if not depth or not at then
    return '(' .. ns
  end
  return '[' .. string.sub(ns, 1, at - 1) .. '\2'
end

local found = {}
for _ = 1, 1000 do
  local page = call('ZRANGEBYLEX', PREFIX .. ':s', from, to, 'LIMIT', 0, depth and 1 or limit)
  if not page[1] then
    return { 'ok', found, '' }
  end
  for _, ns in ipairs(page) do
    local is_listed = has_live_entry(ns)
    if expired > MOST_EXPIRED then
      return { 'sweep' }
    end
    if is_listed then
      found[#found + 1] = ns
      from = next_start(ns)
    else
      from = '(' .. ns
    end
    if #found == limit then
      return { 'ok', found, from }
    end
  end
  if not depth then
    return { 'ok', found, #page == limit and from or '' }
  end
end
return { 'ok', found, from }
