-- The feed after version ARGV[2], oldest first, of the places that begin with ARGV[3] and not with ARGV[4]; or, where ARGV[5]
-- is not '', of that place and those that begin with ARGV[6]. At most ARGV[7] are looked at; as much of each is given as
-- ARGV[8] wants, and of tombstones the head; 'l' leaves all but the live ones out, 't' says which document each was in the
-- index of texts, in epoch ARGV[10]. Gives them, after which version to go on, whether there may be more, where the feed
-- stands, what was forgotten, and at which change that index is.

local since, prefix, hidden, exact, folder = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local limit, want, most = tonumber(ARGV[7]), ARGV[8], tonumber(ARGV[9])
local page = call('ZRANGEBYSCORE', P .. ':c', '(' .. since, '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
local found, after, more = {}, since, #page == 2 * limit
for at = 1, #page, 2 do
  local place = page[at]
  local is_inside
  if exact ~= '' then
    is_inside = place == exact or string.sub(place, 1, #folder) == folder
  else
    is_inside = string.sub(place, 1, #prefix) == prefix
  end
  if is_inside and not (hidden ~= '' and string.sub(place, 1, #hidden) == hidden) then
    local one
    if want == 'h' then
      local head = call('HGET', P .. ':e:' .. place, 'h')
      local r = in_doubt and parse(head)
      if not (r and r.k == 'p' and due(r.e)) then -- that it has expired is a change of its own, once it is swept
        one = { place, head }
      end
    elseif want == 'l' then
      one = entry(place, 'c', most)
    else
      local found_here = call('HMGET', P .. ':e:' .. place, 'h', 'd', 'x')
      local r = parse(found_here[1])
      local content = false
      if r.k == 'p' and r.s ~= '-' then
        content = read_body(r.b, 0, math.min(tonumber(r.s), most))
        room = room - #content
      end
      room = room - #(found_here[2] or '')
      one = { place, found_here[1], found_here[2], found_here[3], content }
      if want == 't' then
        one[6] = call('HGET', P .. ':q:' .. ARGV[10] .. ':n', place)
      end
    end
    if one then
      found[#found + 1] = one
    end
  end
  after = page[at + 1]
  if room < 0 and at + 2 <= #page then
    more = true
    break
  end
end
if not more then
  after = fmt(last)
end
return { 'ok', found, after, more and 1 or 0, fmt(last), call('HGET', P, 'f') or '0', want == 't' and call('HGET', P .. ':q', 'n') or '0' }
