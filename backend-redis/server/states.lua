-- ids -> ids and records of those that have one
local found = {}
for at, stored in pairs(values_of(SESSIONS, ARGV)) do
    if stored then
        found[#found + 1] = ARGV[at]
        found[#found + 1] = stored
    end
end
return found
