-- Read the documents of the text index. ARGV[2] is the first part that the client does not know, and ARGV[3] the number
-- of documents in a part. Returns the change number of the index and a list of parts: the part's number, the versions
-- and lengths of its documents, and the numbers of removed ones. Of parts that the client knows, only removed documents
-- are returned.

local INDEX = PREFIX .. ':q'
local state = call('HMGET', INDEX, 'n', 'e', 'd')
local EPOCH = INDEX .. ':' .. (state[2] or '0')
local found, start = {}, tonumber(ARGV[2])
for part = start, math.ceil(tonumber(state[3] or '0') / ARGV[3]) - 1 do
  local fields = call('HMGET', EPOCH .. ':d:' .. to_text(part), 'v', 'l', 'g')
  found[#found + 1] = { part, fields[1], fields[2], fields[3] or '' }
end
for _, part in ipairs(call('SMEMBERS', EPOCH .. ':g')) do
  if tonumber(part) < start then
    found[#found + 1] = { tonumber(part), '', '', call('HGET', EPOCH .. ':d:' .. part, 'g') }
  end
end
return { 'ok', state[1] or '0', found }
