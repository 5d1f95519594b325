-- What put.lua and batch.lua share. A client sends a write again when the reply was lost. So the shard keeps the last
-- answers of each client, in numbered slots, and a repeated write returns its first answer.
--
-- ARGV[4] is the client, '' for a batch that only reads. ARGV[5] is the client's slot, and ARGV[6] the number of this
-- write in the slot. ARGV[7] is the stamp of the indexed fields that the client knows. ARGV[8] is '1' if the shard
-- should note that the client is alive. ARGV[10] is the number of seconds for which a large answer is kept.

local client, slot, number = ARGV[4], ARGV[5], tonumber(ARGV[6])
local answers = PREFIX .. ':d:' .. client
local previous = client ~= '' and call('HGET', answers, slot)
if previous then
  local previous_number, answer = string.match(previous, '^(%d+) (.*)$')
  previous_number = tonumber(previous_number)
  if previous_number == number then
    answer = answer ~= '' and answer or call('GET', answers .. ':' .. slot)
    return answer and cmsgpack.unpack(answer) or { 'answer expired' }
  elseif previous_number > number then
    return { 'superseded' }
  end
end
if client ~= '' and (fields_stamp or '') ~= ARGV[7] then
  return { 'declare' }
end

local LARGE_ANSWER = 65536 -- bytes

-- Keep the answer for a client that asks again. A large one is kept only as long as the client may ask.
local function keep_answer(answer)
  local packed = cmsgpack.pack(answer)
  if #packed > LARGE_ANSWER then
    call('SET', answers .. ':' .. slot, packed, 'EX', ARGV[10])
    packed = ''
  end
  call('HSET', answers, slot, to_text(number) .. ' ' .. packed)
  if ARGV[8] ~= '' or not previous then
    call('ZADD', PREFIX .. ':m', now, client)
  end
end

local function format_version(record)
  return record and to_text(record.version) or '-'
end

-- Whether an entry is as expected: '*' is anything, '-' is absent, else it is a version.
local function meets_expectation(expect, record)
  return expect == '*' or expect == format_version(record)
end

-- Return when an entry expires, and its ttl. A ttl of 'k' keeps those of the old entry, '-' is none.
local function compute_expiry(ttl, old)
  if ttl == 'k' and old then
    return old.expires, old.ttl
  elseif ttl == 'k' or ttl == '-' then
    return '-', '-'
  end
  return add_times(now, ttl), ttl
end

