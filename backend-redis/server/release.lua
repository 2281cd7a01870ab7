-- session, n, then keys -> 2 if all of it was held until then, 1 if it was there and did not count, 0 if not all was there
local me, n = ARGV[1], ARGV[2]
local step = { me .. '/' .. n }
local keys = {}
for at = 3, #ARGV do
    keys[#keys + 1] = ARGV[at]
    step[#step + 1] = ARGV[at]
end
local function is_mine(entry)
    return entry.session == me and entry.n == n
end
local removed = 0
for at, value in ipairs(values_of(RECORDS, keys)) do
    if value then
        local before = parse(keys[at], value)
        local after = without(before, is_mine)
        if #after < #before then
            save(keys[at], before, after)
            removed = removed + 1
        end
    end
end
if call('ZREM', STEPS, table.concat(step, '\n')) == 0 then
    -- Not all keys of the grant, or none of them is held any more.
    local released = {}
    for _, key in ipairs(keys) do
        released[key] = true
    end
    for _, member in ipairs(call('ZRANGEBYLEX', STEPS, '[' .. step[1] .. '\n', '(' .. step[1] .. '\11')) do
        local left = { step[1] }
        for key in gmatch(sub(member, #step[1] + 2), '[^\n]+') do
            if not released[key] then
                left[#left + 1] = key
            end
        end
        remove(STEPS, member)
        if #left > 1 then
            add(STEPS, table.concat(left, '\n'))
        end
    end
end
flush()
if removed > 0 then
    local names = table.concat(keys, '\n')
    call('SPUBLISH', WAKE, #names <= 16384 and names or '*')
end
if removed < #keys then
    return 0
end
local session = load(me)
if not session then
    return 1
end
-- What cannot be understood frees nothing.
return (session == UNREADABLE or (session.life == 'living' and not is_over(session.over, n))) and 2 or 1
