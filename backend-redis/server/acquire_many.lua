-- Many requests of one session, each for one flat key that nobody holds: each as by the short way of acquire.lua.
-- session, the incarnation or nothing, then for each request n, m, its want and its key
-- -> for each request its token; nothing where it has to be asked by itself
local call, sub = redis.call, string.sub
local me = ARGV[1]
local clock = call('TIME')
local seconds, fraction = clock[1], sub('00000' .. clock[2], -6)
local now_ms = seconds .. sub(fraction, 1, 3)
local expires, over = string.match(call('HGET', KEYS[4], me) or '', '^living\n(%d+)\n([%d,-]*)\n')
local last_over = over and (over == '' and '0' or string.match(over, '.*%-(%d+)'))

local tokens, fields = {}, { '///' }
for at = 3, #ARGV, 4 do
    tokens[#tokens + 1] = false
    fields[#fields + 1] = ARGV[at + 3]
end
-- So long a number is exact.
if not last_over or #last_over > 15 or tonumber(expires) <= tonumber(now_ms) or is_elsewhere_than(ARGV[2]) then
    return tokens
end
local values = call('HMGET', KEYS[1], unpack(fields))
local token = values[1]
local batches, records, taken = {}, { '///', token }, {}
for at = 1, #tokens do
    local from = 4 * at - 1
    local n, key = ARGV[from], ARGV[from + 3]
    local drawn = token_after(token, seconds .. fraction)
    if drawn and not values[at + 1] and not taken[key] and #n <= 15 and tonumber(last_over) < tonumber(n) then
        token, tokens[at], taken[key] = drawn, drawn, true
        local name = me .. '/' .. n
        batches[#batches + 1] = '0'
        batches[#batches + 1] = name .. '\n' .. key
        records[#records + 1] = key
        records[#records + 1] = sub(ARGV[from + 2], 1, 1) .. name .. '/' .. ARGV[from + 1] .. '/' .. now_ms
    end
end
if #batches > 0 then
    records[2] = token
    call('ZADD', KEYS[6], unpack(batches))
    call('HSET', KEYS[1], unpack(records))
end
return tokens
