-- Read entries by version. ARGV[5] has the versions, with spaces between them. From ARGV[6] on there are a version's
-- index in this list and its entry's ID in turn, for each ID that is known: such an entry is found also after it has
-- changed. IDs begin with ARGV[2] and not with ARGV[3]. ARGV[4] is what to read of each entry; 'w' is its ID, head and
-- vectors; 'i' is nothing. Returns pairs of a version's index in the list and an entry, how many versions were looked
-- at, the indexes of versions that are outdated and have no ID, and the last version of the feed. For 'i' it is the index
-- alone instead of a pair, negative if the entry has changed.

local prefix, hidden, want = ARGV[2], ARGV[3], ARGV[4]
local changes, known_ids = PREFIX .. ':c', {}
for at = 6, #ARGV, 2 do
  known_ids[tonumber(ARGV[at])] = ARGV[at + 1]
end
local found, outdated, looked_at = {}, {}, 0
for version in string.gmatch(ARGV[5], '%d+') do
  local current_id = call('ZRANGEBYSCORE', changes, version, version)[1]
  looked_at = looked_at + 1
  local id = current_id or known_ids[looked_at]
  if not id then
    outdated[#outdated + 1] = looked_at
  end
  if id and is_selected(id, prefix, hidden) then
    -- The version of a put is replaced when its entry is deleted, so a current one is live unless it has expired.
    local is_surely_live = want == 'i' and current_id and not has_expired
    local entry = is_surely_live or read_entry(id, (want == 'w' or want == 'i') and 'h' or want, 1e18)
    if entry and want == 'w' then
      local vectors = call('HMGET', PREFIX .. ':v:' .. id, 'n', 'd')
      entry[3], entry[4] = vectors[1], vectors[2]
      bytes_left = bytes_left - #(vectors[2] or '')
    end
    if entry and want == 'i' then
      found[#found + 1] = current_id and looked_at or -looked_at
    elseif entry then
      found[#found + 1] = { looked_at, entry }
    end
  end
  if bytes_left < 0 then
    break
  end
end
return { 'ok', found, looked_at, outdated, to_text(last_version) }
