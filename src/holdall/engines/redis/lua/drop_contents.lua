-- Delete chunks of contents that belong to no file, if nothing has changed since version ARGV[4]. From ARGV[5] on there
-- are the ends of their keys. Chunks that expire belong to a content that is being sent. Returns how many were deleted.

if to_text(last_version) ~= ARGV[4] then
  return 0
end
local deleted = 0
for at = 5, #ARGV do
  local key = PREFIX .. ':b:' .. ARGV[at]
  if call('PTTL', key) == -1 then
    deleted = deleted + call('UNLINK', key)
  end
end
return deleted
