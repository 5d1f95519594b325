-- Find the entries just before and after others in their namespace, in the order of creation. ARGV[2] is the most on
-- each side, ARGV[3] the largest difference of creation times, ARGV[4] '1' to answer even if a namespace is not ordered
-- yet. From ARGV[5] on there are a version and its entry's ID ('' if not known) in turn. Returns 'order' and the
-- namespaces to be ordered first, or 'ok' and, for each version, its index in the list, the entries before it and those
-- after it, the nearest first. Such an entry is its version and its ID.

local limit, gap, must_answer = tonumber(ARGV[2]), ARGV[3], ARGV[4] == '1'

local function is_far(earlier, later)
  return is_before(sortable_time(add_times(earlier, gap)), sortable_time(later))
end

local function find_nearest(command, last, ns, member, created)
  local found, key, from = {}, PREFIX .. ':o:' .. ns, '(' .. member
  while true do
    local page = call(command, key, from, last, 'LIMIT', 0, limit)
    for _, near in ipairs(page) do
      local id = ns .. '\0' .. string.sub(near, TIME_LENGTH + 1)
      local head = call('HGET', PREFIX .. ':e:' .. id, 'h')
      local record = head and parse_head(head)
      if record and record.kind == 'p' then
        local earlier, later = created, record.created
        if last == '-' then
          earlier, later = later, earlier
        end
        if is_far(earlier, later) then
          return found
        elseif is_live(id, record) then
          found[#found + 1] = to_text(record.version)
          found[#found + 1] = id
          if #found == 2 * limit then
            return found
          end
        end
      end
    end
    if #page < limit then
      return found
    end
    from = '(' .. page[#page]
  end
end

local found, unordered, checked = {}, {}, {}
for at = 5, #ARGV, 2 do
  local id = call('ZRANGEBYSCORE', PREFIX .. ':c', ARGV[at], ARGV[at])[1] or (ARGV[at + 1] ~= '' and ARGV[at + 1])
  local head = id and call('HGET', PREFIX .. ':e:' .. id, 'h')
  local record = head and parse_head(head)
  if record and is_live(id, record) then
    local ns, name = split_id(id)
    if not checked[ns] then
      checked[ns] = true
      if call('ZCARD', PREFIX .. ':o:' .. ns) ~= call('ZCARD', PREFIX .. ':n:' .. ns) and not must_answer then
        unordered[#unordered + 1] = ns
      end
    end
    if not unordered[1] then
      local member = member_of(record.created, name)
      found[#found + 1] = {
        (at - 3) / 2,
        find_nearest('ZREVRANGEBYLEX', '-', ns, member, record.created),
        find_nearest('ZRANGEBYLEX', '+', ns, member, record.created),
      }
    end
  end
end
if unordered[1] then
  return { 'order', unordered }
end
return { 'ok', found }
