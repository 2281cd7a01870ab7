-- session, n, then keys -> 2 if all of it was held until then, 1 if it was there and did not count, 0 if not all was there:
-- who waits holds nothing, and leaves the line
local me, n = ARGV[1], ARGV[2]
local batch = { me .. '/' .. n }
local keys = {}
for at = 3, #ARGV do
    keys[#keys + 1] = ARGV[at]
    batch[#batch + 1] = ARGV[at]
end
local removed, went = 0, false
for at, value in ipairs(values_of(RECORDS, keys)) do
    if value then
        local before = parse(keys[at], value)
        local holds, waits = false, false
        local after = without(before, function(entry)
            local is_mine = entry.session == me and entry.n == n
            holds = holds or (is_mine and not entry.place)
            waits = waits or (is_mine and entry.place)
            return is_mine
        end)
        if holds or waits then
            save(keys[at], before, after)
            went = true
        end
        removed = removed + (holds and 1 or 0)
    end
end
if call('ZREM', BATCHES, table.concat(batch, '\n')) == 0 then
    -- Not all keys of the grant, or none of them is held any more.
    local released = {}
    for _, key in ipairs(keys) do
        released[key] = true
    end
    for _, member in ipairs(call('ZRANGEBYLEX', BATCHES, '[' .. batch[1] .. '\n', '(' .. batch[1] .. '\11')) do
        local left = { batch[1], match(member, '\n()\n') and '' }
        local others = #left
        for key in gmatch(sub(member, #batch[1] + 2), '[^\n]+') do
            if not released[key] then
                left[#left + 1] = key
            end
        end
        remove(BATCHES, member)
        if #left > others then
            add(BATCHES, table.concat(left, '\n'))
        end
    end
end
flush()
if went then
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
return (session == UNREADABLE or (session.life == 'living' and not is_over(session, n))) and 2 or 1
