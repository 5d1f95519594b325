-- Read the documents of the text index. ARGV[2] is the first part that the client does not know, and ARGV[3] the number
-- of documents in a part. ARGV[4] is the version, in 8 bytes, of the last document that the client knows before that
-- part. If it is another one here, the server has lost documents that the client knows, and the first part is 0.
-- Returns the change number of the index, a list of parts, and the first part that is returned whole. Of a part there
-- are its number, the versions and lengths of its documents, and the numbers of removed ones. Of parts that the client
-- knows, only removed documents are returned.

local INDEX = PREFIX .. ':q'
local state = call('HMGET', INDEX, 'n', 'e', 'd')
local EPOCH = INDEX .. ':' .. (state[2] or '0')
local found, start = {}, tonumber(ARGV[2])
local versions = start > 0 and call('HGET', EPOCH .. ':d:' .. to_text(start - 1), 'v') or ''
if string.sub(versions, -8) ~= ARGV[4] then
  start = 0
end
for part = start, math.ceil(tonumber(state[3] or '0') / ARGV[3]) - 1 do
  local fields = call('HMGET', EPOCH .. ':d:' .. to_text(part), 'v', 'l', 'g')
  found[#found + 1] = { part, fields[1], fields[2], fields[3] or '' }
end
for _, part in ipairs(call('SMEMBERS', EPOCH .. ':g')) do
  if tonumber(part) < start then
    found[#found + 1] = { tonumber(part), '', '', call('HGET', EPOCH .. ':d:' .. part, 'g') }
  end
end
return { 'ok', state[1] or '0', found, start }
