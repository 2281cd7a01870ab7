-- the session or nothing, after which step, most holders to remove -> how many were, after which step to go on
local which, from, limit = ARGV[1], ARGV[2], tonumber(ARGV[3])
local to = '+'
if which ~= '' then
    to = '(' .. which .. '0'
end
if from ~= '' then
    from = '(' .. from
else
    from = which ~= '' and '[' .. which .. '/' or '-'
end
-- So many bytes of steps are looked at.
local budget = 1000000
local removed = 0
local last = ''
while true do
    local steps = call('ZRANGEBYLEX', STEPS, from, to, 'LIMIT', '0', '100')
    for _, member in ipairs(steps) do
        if removed >= limit or budget <= 0 then
            tell_if_freed()
            return { removed, last }
        end
        budget = budget - #member - 100
        last = member
        local id, n = match(member, '^([0-9a-f]+)/(%d+)\n')
        local session = id and #id == 32 and meet(id) or UNREADABLE
        if session.life == 'dead' or (session.life ~= 'unreadable' and is_over(session.over, n)) then
            local keys = {}
            for key in gmatch(sub(member, #id + #n + 3), '[^\n]+') do
                keys[#keys + 1] = key
            end
            for at, value in ipairs(values_of(RECORDS, keys)) do
                if value then
                    local before = parse(keys[at], value)
                    local after = without(before, function(entry)
                        return entry.session == id and entry.n == n
                    end)
                    if #after < #before then
                        save(keys[at], before, after)
                        removed = removed + #before - #after
                    end
                end
            end
            remove(STEPS, member)
            flush()
            freed = true
        end
    end
    if #steps < 100 then
        tell_if_freed()
        return { removed, '' }
    end
    from = '(' .. steps[#steps]
end
