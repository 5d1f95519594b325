-- The contents of files, of those that have all of some texts: ARGV[2] says how many texts follow, and then come places.
-- Stops after so many bytes. Gives pairs of a place's number and a content, and how many were looked at. What is larger than
-- one answer has no content: it is to be read in parts.

local texts = {}
for at = 3, 2 + ARGV[2] do
  texts[#texts + 1] = ARGV[at]
end
local found, looked = {}, 0
for at = 3 + ARGV[2], #ARGV do
  local place = ARGV[at]
  local head = call('HGET', P .. ':e:' .. place, 'h')
  local r = head and parse(head)
  looked = looked + 1
  if r and r.s ~= '-' and tonumber(r.s) > 1048576 and is_live(place, r) then
    found[#found + 1] = { looked, false }
    break
  elseif r and r.s ~= '-' and is_live(place, r) then
    local content = read_body(r.b, 0, tonumber(r.s))
    room = room - #content
    local has = true
    for _, text in ipairs(texts) do
      has = has and string.find(content, text, 1, true)
    end
    if has then
      found[#found + 1] = { looked, content }
    end
  end
  if room < 0 then
    break
  end
end
return { 'ok', found, looked }
