-- Namespaces that hold entries, from ARGV[2] to ARGV[3] (as ZRANGEBYLEX has them), at most ARGV[4] of them; of those whose first
-- ARGV[5] labels are the same ('' for all) the first. Gives them, and from where to go on, '' for nowhere.

local from, to, limit, depth = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

local expired = 0
local function is_inhabited(ns)
  if not in_doubt then
    return true
  end
  local start = 0
  while true do
    local page = call('ZRANGE', P .. ':n:' .. ns, start, start + 63)
    for _, name in ipairs(page) do
      local place = ns .. '\0' .. name
      if is_live(place, parse(call('HGET', P .. ':e:' .. place, 'h'))) then
        return true
      end
    end
    expired = expired + #page
    if #page < 64 or expired > 1000 then
      return false
    end
    start = start + 64
  end
end

local function after(ns)
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
  local page = call('ZRANGEBYLEX', P .. ':s', from, to, 'LIMIT', 0, depth and 1 or limit)
  if not page[1] then
    return { 'ok', found, '' }
  end
  for _, ns in ipairs(page) do
    local is_one = is_inhabited(ns)
    if expired > 1000 then -- somebody has to sweep first
      return { 'sweep' }
    end
    if is_one then
      found[#found + 1] = ns
      from = after(ns)
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
