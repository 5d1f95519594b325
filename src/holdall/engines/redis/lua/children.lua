-- List the files and subfolders of a folder. ARGV[2] is the ID of the folder, with a '/' at its end. The range of IDs
-- is ARGV[3] to ARGV[4], in the form of ZRANGEBYLEX. ARGV[5] is the limit. ARGV[6] is '1' for all files below the
-- folder, ARGV[7] is '1' for paths without heads. Returns IDs (those of folders end in '/') and heads in turn, and
-- where to go on, '' for the end.

local folder, from, to, limit = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local is_deep, is_bare = ARGV[6] == '1', ARGV[7] == '1'
local found, count = {}, 0

for _ = 1, limit + 1 do
  local size = math.min(limit - count + 1, is_deep and 1000 or 100)
  local page = call('ZRANGEBYLEX', PREFIX .. ':f', from, to, 'LIMIT', 0, size)
  local subfolder -- the one that was listed last; its other files are skipped
  for _, id in ipairs(page) do
    if not (subfolder and has_prefix(id, subfolder)) then
      subfolder = nil
      local slash = not is_deep and string.find(id, '/', #folder + 1, true)
      local head = ''
      if has_expired or not (slash or is_bare) then
        head = call('HGET', PREFIX .. ':e:' .. id, 'h')
      end
      if not has_expired or is_live(id, parse_head(head)) then
        if count == limit then
          return { 'ok', found, from }
        end
        if slash then
          subfolder = string.sub(id, 1, slash)
          id, head = subfolder, ''
        end
        count = count + 1
        found[2 * count - 1], found[2 * count] = id, is_bare and '' or head
      end
    end
    -- '0' is the character after '/': the range goes on after the subfolder.
    from = subfolder and '[' .. string.sub(subfolder, 1, -2) .. '0' or '(' .. id
  end
  if #page < size then
    return { 'ok', found, '' }
  end
end
return { 'ok', found, from }
