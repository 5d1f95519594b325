-- Entries in key order: from ARGV[2] to ARGV[3] (as ZRANGEBYLEX has them), at most ARGV[4] looked at; as much of each as
-- ARGV[5] wants (of contents ARGV[6] bytes at most), where they have one of each group of needles from ARGV[7] on. Gives them,
-- and from where to go on, '' for nowhere.

local limit, want, most = tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6])
local needles = needles_from(7)
local page = call('ZRANGEBYLEX', P .. ':p', ARGV[2], ARGV[3], 'LIMIT', 0, limit)
local found, after = {}, #page == limit and '(' .. page[#page] or ''
for number, place in ipairs(page) do
  local one = entry(place, want, most, needles)
  if one then
    found[#found + 1] = one
  end
  if room < 0 and number < #page then
    after = '(' .. place
    break
  end
end
return { 'ok', found, after }
