-- What the short ways of an acquisition share.

-- Whether the server is of another incarnation than that.
local function is_elsewhere_than(meant)
    return meant ~= ''
        and not string.find(redis.call('INFO', 'replication'), 'master_replid:' .. meant, 1, true)
end

-- The token behind the last one, by the clock if that is ahead; none if it is not certain. Of as many digits each, so that
-- the order of texts is that of numbers; so many are exact below 2^53.
local function token_after(last, by_clock)
    if not last or #last ~= 16 or #by_clock ~= 16 or string.find(last, '%D') then
        return nil
    elseif last < by_clock then
        return by_clock
    end
    return last < '9007199254740991' and string.format('%.0f', tonumber(last) + 1)
end

