-- Read the contents of files that contain all of some texts. ARGV[2] is the number of texts, which follow; the rest are
-- IDs. Returns pairs of an ID's index in the list and a content, and how many IDs were looked at: the script stops when
-- the reply is large. A content that is too large for one reply is nil; the client reads it in parts. Files larger than
-- LARGEST_FILE are skipped.

local texts = {}
for at = 3, 2 + ARGV[2] do
  texts[#texts + 1] = ARGV[at]
end

local function has_texts(content)
  for _, text in ipairs(texts) do
    if not string.find(content, text, 1, true) then
      return false
    end
  end
  return true
end

local found, looked_at = {}, 0
for at = 3 + ARGV[2], #ARGV do
  local id = ARGV[at]
  local head = call('HGET', PREFIX .. ':e:' .. id, 'h')
  local record = head and parse_head(head)
  local size = record and tonumber(record.size)
  looked_at = looked_at + 1
  if size and size <= LARGEST_FILE and is_live(id, record) then
    if size > 1048576 then
      found[#found + 1] = { looked_at, false }
      break
    end
    local content = read_body(record.body, 0, size)
    bytes_left = bytes_left - #content
    if has_texts(content) then
      found[#found + 1] = { looked_at, content }
    end
  end
  if bytes_left < 0 then
    break
  end
end
return { 'ok', found, looked_at }
