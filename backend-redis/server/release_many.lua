-- Many releases of one session, each of one flat key that the grant holds alone: each as by the short way of release.lua.
-- session, then for each its n and its key -> for each 2, for it was held until then; nothing where it has to be asked by
-- itself
local call = redis.call
local me = ARGV[1]
local over = string.match(call('HGET', KEYS[4], me) or '', '^living\n%d+\n([%d,-]*)\n')
local last_over = over and tonumber(over == '' and '0' or string.match(over, '.*%-(%d+)'))

local stood, keys = {}, {}
for at = 2, #ARGV, 2 do
    stood[#stood + 1] = false
    keys[#keys + 1] = ARGV[at + 1]
end
if not last_over then
    return stood
end
local gone = {}
local values = call('HMGET', KEYS[1], unpack(keys))
for at, key in ipairs(keys) do
    local n = ARGV[2 * at]
    local name = me .. '/' .. n
    -- Great numbers are rounded, which keeps their order. First what frees memory, then what decides.
    if values[at] and last_over < tonumber(n) and string.find(values[at], '^[cus]' .. name .. '/%d+/%d+$')
        and call('ZREM', KEYS[6], name .. '\n' .. key) == 1 then
        gone[#gone + 1] = key
        stood[at] = 2
    end
end
if #gone > 0 then
    call('HDEL', KEYS[1], unpack(gone))
    local names = table.concat(gone, '\n')
    call('SPUBLISH', KEYS[8], #names <= 16384 and names or '*')
end
return stood
