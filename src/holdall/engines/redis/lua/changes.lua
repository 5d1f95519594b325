-- Read the feed after version ARGV[2], oldest first. The changes are those of IDs that begin with ARGV[3] and not with
-- ARGV[4]; or, if ARGV[5] is not '', those of that ID and of IDs that begin with ARGV[6]. At most ARGV[7] changes are
-- looked at. ARGV[8] is what to return of each: 'h' the head, 'c' all of an entry, 'l' all of live entries and no
-- others, 't' all of an entry and its document in the text index of epoch ARGV[10], 'r' the record of an entry with its
-- vectors, or the head of a tombstone. Of a content, at most ARGV[9] bytes are read. ARGV[11] is the version of the
-- client's cursor, '' for none.
--
-- Returns the changes, the version to go on after, whether there may be more, the last version of the feed, the last
-- purged version, the change number of the text index, and whether the cursor is valid. A cursor is not valid if it is
-- older than what was purged, newer than the feed, or in a range of versions that may have been lost.

local since, prefix, hidden, exact, folder = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local limit, want, content_limit = tonumber(ARGV[7]), ARGV[8], tonumber(ARGV[9])

local function read_change(id)
  if want == 'h' then
    local head, acting = unpack(call('HMGET', PREFIX .. ':e:' .. id, 'h', 'a'))
    local record = has_expired and parse_head(head)
    -- The expiry becomes a change of its own when the entry is swept.
    if record and record.kind == 'p' and is_past(record.expires) then
      return nil
    end
    return { id, head, acting }
  elseif want == 'l' then
    return read_entry(id, 'c', content_limit)
  elseif want == 'r' then
    local head = call('HGET', PREFIX .. ':e:' .. id, 'h')
    if parse_head(head).kind ~= 'p' then
      return { id, head, false, false, false, false }
    end
    return read_record(id)
  end
  local found = call('HMGET', PREFIX .. ':e:' .. id, 'h', 'd', 'x')
  local record = parse_head(found[1])
  local content = false
  if record.kind == 'p' and record.size ~= '-' then
    content = read_body(record.body, 0, readable_bytes(tonumber(record.size), content_limit))
    bytes_left = bytes_left - #content
  end
  bytes_left = bytes_left - #(found[2] or '')
  local change = { id, found[1], found[2], found[3], content }
  if want == 't' then
    change[6] = call('HGET', PREFIX .. ':q:' .. ARGV[10] .. ':n', id)
  end
  return change
end

local page = call('ZRANGEBYSCORE', PREFIX .. ':c', '(' .. since, '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
local found, after, has_more = {}, since, #page == 2 * limit
for at = 1, #page, 2 do
  local id = page[at]
  local is_inside
  if exact ~= '' then
    is_inside = id == exact or has_prefix(id, folder)
  else
    is_inside = has_prefix(id, prefix)
  end
  if is_inside and not (hidden ~= '' and has_prefix(id, hidden)) then
    found[#found + 1] = read_change(id)
  end
  after = page[at + 1]
  if bytes_left < 0 and at + 2 <= #page then
    has_more = true
    break
  end
end
if not has_more then
  after = to_text(last_version)
end

local last_purged, is_valid = call('HGET', PREFIX, 'f') or '0', 1
local cursor = tonumber(ARGV[11])
if cursor then
  local lost_after = call('ZRANGEBYSCORE', PREFIX .. ':l', '(' .. ARGV[11], '+inf', 'LIMIT', 0, 1)[1]
  if cursor < tonumber(last_purged) or cursor > last_version or (lost_after and cursor > tonumber(lost_after)) then
    is_valid = 0
  end
end
local index_change = want == 't' and call('HGET', PREFIX .. ':q', 'n') or '0'
return { 'ok', found, after, has_more and 1 or 0, to_text(last_version), last_purged, index_change, is_valid }
