-- Record that a new run of the server has begun: it was started, or became the primary. ARGV[4] is the mark of the
-- previous run, '' for none, and ARGV[5] the mark of this run. Versions of this run are greater than all earlier ones,
-- also lost ones. Versions between the last one in the store and the first of this run may have been used and lost.
-- `:l` keeps these ranges by their ends. The feed of an empty store begins here.

if (call('HGET', PREFIX, 'r') or '') ~= ARGV[4] then
  return 0 -- another client has recorded it
end
call('DEL', PREFIX .. ':none') -- a first write that needs no memory, so that a full server accepts the others
local last_before = to_text(last_version)
-- A second ahead of the clock: a deleted tree may have used as many versions as it had entries, and the clock of a
-- server that was a replica may be slow.
last_version = math.max(last_version, tonumber(ARGV[3]), read_server_time() + 1000000) + 1
if not stored_version then
  call('HSET', PREFIX, 'f', to_text(last_version))
else
  call('ZADD', PREFIX .. ':l', to_text(last_version), last_before)
  if call('ZCARD', PREFIX .. ':l') > 1000 then -- older cursors are refused, whether or not they were lost
    local oldest = call('ZPOPMIN', PREFIX .. ':l')
    call('HSET', PREFIX, 'f', to_text(math.max(tonumber(call('HGET', PREFIX, 'f') or '0'), tonumber(oldest[2]))))
  end
end
call('HSET', PREFIX, 'v', to_text(last_version), 'r', ARGV[5])
return 1
