-- What scripts that walk share: they look at so much and no more, and say where they stopped. While a deleted tree is
-- not cleared away, they say so instead, and whoever asks sees to that first.

if trees[1] then
  return { 'pending' }
end

-- Whether what the indexes have may have expired.
local in_doubt = call('ZCOUNT', P .. ':x', '-inf', now_number + 8) > 0
local room = 1048576 -- bytes of values and contents in one answer, more or less

-- Groups of needles, of each of which a value must have one; from a place of ARGV on.
local function needles_from(at)
  local groups = {}
  for _ = 1, tonumber(ARGV[at] or '0') do
    local group = {}
    for _ = 1, tonumber(ARGV[at + 1]) do
      group[#group + 1] = ARGV[at + 2]
      at = at + 1
    end
    at = at + 1
    groups[#groups + 1] = group
  end
  return groups[1] and groups or nil
end

-- An entry as far as it is wanted: place, head, value, paths and content, of which `most` bytes. Nil where it does not
-- count. What is wanted is h(ead) alone, v(alue), or c(ontent) too.
local function entry(place, want, most, needles)
  local found = call('HMGET', P .. ':e:' .. place, 'h', 'd', 'x')
  local r = found[1] and parse(found[1])
  if not r or not is_live(place, r) then
    return nil
  end
  if needles and r.s == '-' then
    for _, any in ipairs(needles) do
      local has = false
      for _, needle in ipairs(any) do
        if string.find(found[2], needle, 1, true) then
          has = true
          break
        end
      end
      if not has then
        return nil
      end
    end
  end
  if want == 'h' then
    return { place, found[1] }
  end
  local content = false
  if want == 'c' and r.s ~= '-' then
    content = read_body(r.b, 0, math.min(tonumber(r.s), most))
    room = room - #content
  end
  room = room - #found[2]
  return { place, found[1], found[2], found[3], content }
end

