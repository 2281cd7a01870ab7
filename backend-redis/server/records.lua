-- cursor, pattern, count -> cursor, records
local cursor, page = unpack(call('HSCAN', RECORDS, ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3]))
local records = {}
for at = 1, #page, 2 do
    if page[at] ~= TOKEN then
        records[#records + 1] = shown(page[at], parse(page[at], page[at + 1]), false)
    end
end
return { cursor, records }
