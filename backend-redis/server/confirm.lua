-- session, n, then for each claim its want and its key -> 1 if all of them are held and the session lives
local me, n = ARGV[1], ARGV[2]
local session = meet(me)
if session == UNREADABLE then
    return corrupt('the session record cannot be understood')
end
if session.life ~= 'living' or is_over(session, n) then
    tell_if_freed()
    return 0
end
local keys = {}
for at = 4, #ARGV, 2 do
    keys[#keys + 1] = ARGV[at]
end
for at, value in ipairs(values_of(RECORDS, keys)) do
    local found = false
    for _, entry in ipairs(value and parse(keys[at], value) or {}) do
        found = found or (entry.session == me and entry.n == n and entry.want == ARGV[2 * at + 1] and not entry.place)
    end
    if not found then
        return 0
    end
end
-- A write, so that replicas can be waited for.
store(me, session)
return 1
