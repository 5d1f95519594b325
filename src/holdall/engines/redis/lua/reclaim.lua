-- Replace up to ARGV[4] entries of the first deleted tree with tombstones. Their versions and time were set when the
-- tree was deleted. Returns 1 if there is more to do, else 0.

local tree = deleted_trees[1]
if not tree then
  return 0
end
local limit = tonumber(ARGV[4])
local page = call('ZRANGEBYLEX', PREFIX .. ':' .. tree.index, '[' .. tree.low, '(' .. tree.high, 'LIMIT', 0, limit)
now, now_number = tree.now, tonumber(tree.now)
for _, id in ipairs(page) do
  local record = parse_head(call('HGET', PREFIX .. ':e:' .. id, 'h'))
  if record.version <= tree.v and not is_past(record.expires) then -- entries that had expired by then are swept
    tree.next = tree.next + shard_count
    replace_with_tombstone(id, record, tree.next, 'd', tree.now, tree.acting)
  end
end
if #page < limit then
  call('LPOP', PREFIX .. ':g')
  call('HINCRBY', PREFIX, 'g', -1)
  finish_write()
  return #deleted_trees > 1 and 1 or 0
end
tree.low = page[#page] .. '\0'
call('LSET', PREFIX .. ':g', 0, cmsgpack.pack(tree))
return 1
