-- id, the number of a grant to go on with and how many of its keys were seen, most records
-- -> with which grant to go on and how many of its keys were seen (-1 at the end), records
local id, number, seen_keys, limit = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local records, looked_at = {}, 0
local from = '[' .. id .. '/' .. (number ~= '' and number .. '\n' or '')
local AT_ONCE = 8
while true do
    local batches = call('ZRANGEBYLEX', BATCHES, from, '(' .. id .. '0', 'LIMIT', '0', AT_ONCE)
    for _, member in ipairs(batches) do
        local n = match(member, '^[^/]*/(%d+)\n') or ''
        local keys = {}
        for key in gmatch(sub(member, #id + #n + 3), '[^\n]+') do
            keys[#keys + 1] = key
        end
        local values = values_of(RECORDS, keys)
        for at = (n == number and seen_keys or 0) + 1, #keys do
            if #records >= limit or looked_at >= 5000 then
                return { n, at - 1, records }
            end
            looked_at = looked_at + 1
            -- Where the session has several grants on a key, it is listed with the first of them.
            local entries = values[at] and parse(keys[at], values[at]) or {}
            for _, entry in ipairs(entries) do
                if entry.session == id and standing(entry, seen) ~= 'gone' then
                    if entry.n == n then
                        records[#records + 1] = shown(keys[at], entries, false)
                    end
                    break
                end
            end
        end
    end
    if #batches < AT_ONCE then
        return { '', -1, records }
    end
    from = '(' .. batches[#batches]
end
