-- Read a small file as a whole, which is the most frequent read: a file that never expires, while there are no deleted
-- trees. Every other read goes on to the scripts that follow. To define their functions takes the server as long as this
-- whole read. `read.lua` describes the arguments.

do
  local call, prefix, id = redis.call, KEYS[1], ARGV[2]
  local head = ARGV[3] == '0' and ARGV[4] == '' and ARGV[6] == '' and call('HGET', prefix .. ':e:' .. id, 'h')
  if head then
    local expires, kind, size, body = string.match(
      head, '^[^ ]+ [^ ]+ [^ ]+ ([^ ]+) [^ ]+ ([^ ]+) ([^ ]+) [^ ]+ ([^ ]+) ')
    local length, trees = tonumber(size), call('HGET', prefix, 'g')
    if kind == 'p' and expires == '-' and length and length <= 1048576 and (not trees or trees == '0') then
      local content = call('GET', prefix .. ':b:' .. body .. ':0')
      local is_replica = type(redis.pcall('DEL', prefix .. ':none')) == 'table'
      if content and #content == length and not is_replica then
        return { body, size, content }
      end
    end
  end
end

