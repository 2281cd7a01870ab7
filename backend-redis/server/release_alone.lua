-- The short way of release.lua, with the same arguments and answers: for keys of one batch, of which each is held by the
-- grant and by nobody beside it. Anything else is left to what follows.
do
    local call = redis.call
    local name = ARGV[1] .. '/' .. ARGV[2]
    -- Whether the session lives and no number like this one is over; else what follows finds out. Great numbers are
    -- rounded, which keeps their order.
    local session = call('HGET', KEYS[4], ARGV[1])
    local over = session and string.match(session, '^living\n%d+\n([%d,-]*)\n')
    local last = over and (over == '' and '0' or string.match(over, '.*%-(%d+)'))
    local lives = last and tonumber(last) < tonumber(ARGV[2])
    if lives and #ARGV == 3 and string.byte(ARGV[3]) ~= 47 then
        -- One flat key: what follows does the same.
        local key = ARGV[3]
        local value = call('HGET', KEYS[1], key)
        if value and string.find(value, '^[cus]' .. name .. '/%d+/%d+$')
            and call('ZREM', KEYS[6], name .. '\n' .. key) == 1 then
            call('HDEL', KEYS[1], key)
            call('SPUBLISH', KEYS[8], key)
            return 2
        end
    end
    local keys = { unpack(ARGV, 3, math.min(#ARGV, 4000)) }
    local alone = lives and #ARGV > 2 and #ARGV <= 4000
    if alone then
        local held = '^[cusrw]' .. name .. '/%d+/%d+$'
        local values = call('HMGET', KEYS[1], unpack(keys))
        local writes, reads = {}, {}
        for at = 1, #values do
            local value = values[at]
            if not value or not string.find(value, held) then
                alone = false
                break
            end
            local want, is_path = string.byte(value), string.byte(keys[at]) == 47
            if is_path ~= (want == 119 or want == 114) then
                alone = false
                break
            end
            if is_path then
                local paths = want == 119 and writes or reads
                paths[#paths + 1] = keys[at]
            end
        end
        local names = table.concat(keys, '\n')
        -- First what frees memory, then what decides.
        if alone and call('ZREM', KEYS[6], name .. '\n' .. names) == 1 then
            call('HDEL', KEYS[1], unpack(keys))
            if #writes > 0 then
                call('ZREM', KEYS[2], unpack(writes))
            end
            if #reads > 0 then
                call('ZREM', KEYS[3], unpack(reads))
            end
            call('SPUBLISH', KEYS[8], #names <= 16384 and names or '*')
            return 2
        end
    end
end
