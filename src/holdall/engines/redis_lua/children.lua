-- What is in a folder, whose path with its namespace before it is ARGV[2], from ARGV[3] to ARGV[4] (as ZRANGEBYLEX has
-- them), at most ARGV[5]. ARGV[6] is '1' for all files below, ARGV[7] '1' for paths alone. Gives places (with a '/' at the
-- end of folders) and heads in turn, and from where to go on, '' for nowhere.

local folder, from, to, limit = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local is_deep, is_bare = ARGV[6] == '1', ARGV[7] == '1'
local found, count = {}, 0

for _ = 1, limit + 1 do
  local size = math.min(limit - count + 1, is_deep and 1000 or 100)
  local page = call('ZRANGEBYLEX', P .. ':f', from, to, 'LIMIT', 0, size)
  local inside -- the subfolder that we are in
  for _, place in ipairs(page) do
    if not (inside and string.sub(place, 1, #inside) == inside) then
      inside = nil
      local slash = not is_deep and string.find(place, '/', #folder + 1, true)
      local head = ''
      if in_doubt or not (slash or is_bare) then
        head = call('HGET', P .. ':e:' .. place, 'h')
      end
      if not in_doubt or is_live(place, parse(head)) then
        if count == limit then
          return { 'ok', found, from }
        end
        if slash then
          inside = string.sub(place, 1, slash)
          place, head = inside, ''
        end
        count = count + 1
        found[2 * count - 1], found[2 * count] = place, is_bare and '' or head
      end
    end
    from = inside and '[' .. string.sub(inside, 1, -2) .. '0' or '(' .. place
  end
  if #page < size then
    return { 'ok', found, '' }
  end
end
return { 'ok', found, from }
