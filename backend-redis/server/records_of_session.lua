-- id, the number of a grant to go on with and how many of its keys were seen, most records
-- -> with which grant to go on and how many of its keys were seen (-1 at the end), records
local id, number, seen_keys, limit = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local records, looked_at = {}, 0
-- With which grant a key is listed: the first that the session has on it. Of a key on which it has thousands, the record is not
-- read for each.
local first = {}
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
        for at = (n == number and seen_keys or 0) + 1, #keys do
            if #records >= limit or looked_at >= 5000 then
                return { n, at - 1, records }
            end
            looked_at = looked_at + 1
            local key = keys[at]
            if first[key] == nil or first[key] == n then
                first[key] = false
                local value = call('HGET', RECORDS, key)
                local entries = value and parse(key, value) or {}
                for _, entry in ipairs(entries) do
                    if entry.session == id and standing(entry, seen) ~= 'gone' then
                        first[key] = entry.n
                        break
                    end
                end
                if first[key] == n then
                    records[#records + 1] = shown(key, entries, false)
                end
            end
        end
    end
    if #batches < AT_ONCE then
        return { '', -1, records }
    end
    from = '(' .. batches[#batches]
end
