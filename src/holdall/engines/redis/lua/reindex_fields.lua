-- Index the fields of stored entries. ARGV[4] is the stamp of the indexed fields that the client knows; if it is
-- another one, the tokens may lack a field, and 0 is returned. ARGV has, from 5 on, the ID, version and tokens of each
-- entry. An entry that has changed since is skipped: the client that wrote it has indexed its fields.

if (fields_stamp or '') ~= ARGV[4] then
  return 0
end
for at = 5, #ARGV, 3 do
  local id, version, tokens = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local key = PREFIX .. ':e:' .. id
  local head = call('HGET', key, 'h')
  local record = head and parse_head(head)
  if record and record.kind == 'p' and to_text(record.version) == version then
    local old_tokens = call('HGET', key, 'i')
    if old_tokens then
      update_field_index(old_tokens, 'ZREM', id)
    end
    call('HSET', key, 'i', tokens)
    update_field_index(tokens, 'ZADD', id)
  end
end
return 1
