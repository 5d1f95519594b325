-- List entries in key order, from ID ARGV[2] to ARGV[3] (in the form of ZRANGEBYLEX). At most ARGV[4] are looked at.
-- ARGV[5] is what to read of each entry ('r' for its record), ARGV[6] the most bytes of a content, and from ARGV[7] on
-- there are groups of needles. Returns the entries, and where to go on, '' for the end.

local limit, want, content_limit = tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6])
local needles = parse_needles(7)
local page = call('ZRANGEBYLEX', PREFIX .. ':p', ARGV[2], ARGV[3], 'LIMIT', 0, limit)
local found, after = {}, #page == limit and '(' .. page[#page] or ''
for number, id in ipairs(page) do
  if want == 'r' then
    found[#found + 1] = read_record(id)
  else
    found[#found + 1] = read_entry(id, want, content_limit, needles)
  end
  if bytes_left < 0 and number < #page then
    after = '(' .. id
    break
  end
end
return { 'ok', found, after }
