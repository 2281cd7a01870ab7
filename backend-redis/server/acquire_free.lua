-- The short way of acquire.lua, with the same arguments and answers: for claims that meet no record at all, neither on
-- their keys nor above or below them, by a session that certainly lives. Anything else is left to what follows.

local is_elsewhere = is_elsewhere_than(ARGV[4])
do
    local call, sub, TOKEN = redis.call, string.sub, '///'
    local me, n = ARGV[1], ARGV[2]
    local session = call('HGET', KEYS[4], me)
    local expires, over = string.match(session or '', '^living\n(%d+)\n([%d,-]*)\n')
    local clock = call('TIME')
    local seconds, fraction = clock[1], sub('00000' .. clock[2], -6)
    local last_over = over and (over == '' and '0' or string.match(over, '.*%-(%d+)'))
    -- So long a number is exact.
    local free = last_over and #last_over <= 15 and #n <= 15 and tonumber(last_over) < tonumber(n)
        and tonumber(expires) > tonumber(seconds .. sub(fraction, 1, 3))
        and not is_elsewhere

    if free and #ARGV == 7 and string.byte(ARGV[7]) ~= 47 then
        -- One flat key: what follows does the same.
        local key = ARGV[7]
        local values = call('HMGET', KEYS[1], TOKEN, key)
        local token = token_after(values[1], seconds .. fraction)
        if token and not values[2] then
            local name = me .. '/' .. n
            call('ZADD', KEYS[6], '0', name .. '\n' .. key)
            call('HSET', KEYS[1], TOKEN, token, key,
                sub(ARGV[6], 1, 1) .. name .. '/' .. ARGV[3] .. '/' .. seconds .. sub(fraction, 1, 3))
            return token
        end
        free = false
    end

    -- Whether nobody in that set of paths holds the path, one above it or one below it. What is held above it is found
    -- from behind: a path that stands before it in order and is not above it has no path above it behind itself, save
    -- those that are shorter than what the two have in common.
    local function is_free_path(key, set)
        if call('ZRANGEBYLEX', set, '[' .. key .. '/', '(' .. key .. '0', 'LIMIT', '0', '1')[1] then
            return false
        end
        local from = key
        for _ = 1, 4 do
            local before = call('ZREVRANGEBYLEX', set, '[' .. from, '-', 'LIMIT', '0', '1')[1]
            if not before then
                return true
            end
            local length, most = 0, math.min(#before, #from)
            while length < most do
                local middle = math.ceil((length + most) / 2)
                if sub(before, length + 1, middle) == sub(from, length + 1, middle) then
                    length = middle
                else
                    most = middle - 1
                end
            end
            if length == #before and (length == #key or string.byte(key, length + 1) == 47) then
                return false
            end
            local above = string.match(sub(key, 1, length + 1), '^(.+)/')
            if not above then
                return true
            end
            from = above
        end
        return false
    end

    if free then
        local fields = { TOKEN }
        for at = 7, #ARGV, 2 do
            local key = ARGV[at]
            fields[#fields + 1] = key
            if string.byte(key) == 47 then
                free = free and is_free_path(key, KEYS[2])
                    and (ARGV[at - 1] == 'r' or is_free_path(key, KEYS[3]))
            end
        end
        free = free and #fields <= 4000
        if free then
            local values = call('HMGET', KEYS[1], unpack(fields))
            local token = token_after(values[1], seconds .. fraction)
            free = token
            for at = 2, #values do
                if values[at] then
                    free = false
                    break
                end
            end
            if free then
                local name = me .. '/' .. n
                local tail = name .. '/' .. ARGV[3] .. '/' .. seconds .. sub(fraction, 1, 3)
                local records, batch, writes, reads = { TOKEN, token }, { name }, { '0' }, { '0' }
                for at = 6, #ARGV, 2 do
                    local want, key = ARGV[at], ARGV[at + 1]
                    local letter = sub(want, 1, 1)
                    batch[#batch + 1] = key
                    records[#records + 1] = key
                    records[#records + 1] = letter .. tail
                    local paths = letter == 'w' and writes or letter == 'r' and reads
                    if paths then
                        if #paths > 1 then
                            paths[#paths + 1] = '0'
                        end
                        paths[#paths + 1] = key
                    end
                end
                call('ZADD', KEYS[6], '0', table.concat(batch, '\n'))
                if #writes > 1 then
                    call('ZADD', KEYS[2], unpack(writes))
                end
                if #reads > 1 then
                    call('ZADD', KEYS[3], unpack(reads))
                end
                call('HSET', KEYS[1], unpack(records))
                return token
            end
        end
    end
end
