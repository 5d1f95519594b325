-- Add entries to the order of creation of their namespace. ARGV[4] is the namespace, ARGV[5] the ID to begin with (in
-- the form of ZRANGEBYLEX), '' for the first; at most ARGV[6] entries are added. Returns where to go on, '' at the end.
-- From the first call on, every write in this shard keeps the order up to date.

local ns, start, limit = ARGV[4], ARGV[5], tonumber(ARGV[6])
local ordered = PREFIX .. ':o:' .. ns
call('HSET', PREFIX, 'o', 1)
if start == '' then
  start = '[' .. ns .. '\0'
  if call('ZCARD', ordered) > call('ZCARD', PREFIX .. ':n:' .. ns) then -- written by a client that does not know it
    call('UNLINK', ordered)
  end
end
local page = call('ZRANGEBYLEX', PREFIX .. ':p', start, '(' .. ns .. '\1', 'LIMIT', 0, limit)
for _, id in ipairs(page) do
  local record = parse_head(call('HGET', PREFIX .. ':e:' .. id, 'h'))
  local _, name = split_id(id)
  call('ZADD', ordered, 0, member_of(record.created, name))
end
return { 'ok', #page == limit and '(' .. page[#page] or '' }
