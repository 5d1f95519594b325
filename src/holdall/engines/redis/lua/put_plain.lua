-- Put one item that never expires, under no condition, in a shard without indexed fields: the most frequent write. Every
-- other put goes on to the scripts that follow. There, functions do the same, with more cases; to define and to call them
-- takes the server 22 µs instead of 15 µs, and a put over loopback 42 µs instead of 34 µs (Valkey 9.1, new keys, values
-- of 1 KB). `client_write.lua` and `put.lua` describe the arguments, and `store_record` and `keep_old` in `write.lua` what
-- is written.

do
  local call, format, match, prefix = redis.call, string.format, string.match, KEYS[1]
  local stored, trees, fields, order, history = unpack(call('HMGET', prefix, 'v', 'g', 'x', 'o', 'h'))
  local is_plain = stored and (not trees or trees == '0') and not fields and not order
    and ARGV[7] == '' and ARGV[8] == '' and ARGV[13] == '-' and ARGV[14] == '*' and ARGV[15] == ''
  local answers, slot, id = prefix .. ':d:' .. ARGV[4], ARGV[5], ARGV[11]
  local previous = is_plain and call('HGET', answers, slot)
  if previous and tonumber(match(previous, '^%d+')) < tonumber(ARGV[6]) then
    local key = prefix .. ':e:' .. id
    local head = call('HGET', key, 'h')
    local ns, name = match(id, '^([^%z]*)%z(.*)$')
    local old_version, created, updated
    if head then
      old_version, created, updated = match(head, '^([^ ]+) ([^ ]+) ([^ ]+) %- %- p %- %- %- %-$')
    end
    local may_be_hidden = history and string.find(ns, 'holdall', 1, true) -- hidden namespaces keep no history
    if (created or not head) and not may_be_hidden then
      local shard, shard_count = match(ARGV[2], '^(%d+)/(%d+)$')
      local time = call('TIME')
      local server_time = time[1] .. format('%06d', time[2])
      local now = ARGV[1] ~= '' and ARGV[1] or server_time
      local floor = math.max(tonumber(stored), tonumber(ARGV[3]), tonumber(server_time) - shard_count)
      local version = format('%.0f', (math.floor(floor / shard_count) + 1) * shard_count + shard)
      if head and history then
        local old = call('HMGET', key, 'd', 'x', 'a', 'c')
        call('ZADD', prefix .. ':h:' .. id, old_version, cmsgpack.pack({
          head, old[1], old[2] or '', old[4] or updated, old[3] or '', version, 'p', now, '',
        }))
        call('ZADD', prefix .. ':hc', version, version .. ' ' .. id)
        call('ZADD', prefix .. ':hp', 0, id)
      end
      if not head then
        call('ZADD', prefix .. ':p', 0, id)
        call('ZADD', prefix .. ':s', 0, ns)
      end
      call('ZADD', prefix .. ':n:' .. ns, version, name)
      call('ZADD', prefix .. ':c', version, id)
      if head then
        call('HDEL', key, 'a', 'c', 'x')
      end
      local new_head = version .. ' ' .. (created or now) .. ' ' .. now .. ' - - p - - - -'
      call('HSET', key, 'h', new_head, 'd', ARGV[12])
      local answer = { 'ok', { new_head }, version }
      call('HSET', answers, slot, ARGV[6] .. ' ' .. cmsgpack.pack(answer))
      call('HSET', prefix, 'v', version)
      redis.pcall(shard_count == '1' and 'PUBLISH' or 'SPUBLISH', prefix .. ':feed', '')
      return answer
    end
  end
end

