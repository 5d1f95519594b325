-- Clear away up to ARGV[4] entries of the first tree that was deleted as a whole: each becomes the tombstone that was
-- promised then. Gives whether there is more to be done.

local tree = trees[1]
if not tree then
  return 0
end
local limit = tonumber(ARGV[4])
local step = shard and tonumber(shards) or 1
local page = call('ZRANGEBYLEX', P .. ':' .. tree.index, '[' .. tree.low, '(' .. tree.high, 'LIMIT', 0, limit)
now, now_number = tree.now, tonumber(tree.now)
for _, place in ipairs(page) do
  local r = parse(call('HGET', P .. ':e:' .. place, 'h'))
  if r.v <= tree.v and not due(r.e) then -- what had expired by then is the sweeper's
    tree.next = tree.next + step
    bury(place, r, tree.next, 'd', tree.now)
  end
end
if #page < limit then
  call('LPOP', P .. ':g')
  call('HINCRBY', P, 'g', -1)
  tell()
  return #trees > 1 and 1 or 0
end
tree.low = page[#page] .. '\0'
call('LSET', P .. ':g', 0, cmsgpack.pack(tree))
return 1
