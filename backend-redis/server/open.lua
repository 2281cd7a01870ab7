-- id, ttl_ms, label -> 'used'; or the incarnation, which is empty where we may not ask
local id, ttl, label = ARGV[1], ARGV[2], ARGV[3]
if call('HEXISTS', SESSIONS, id) == 1 or call('HEXISTS', INTENTS, id) == 1
    or #call('ZRANGEBYLEX', BATCHES, '[' .. id .. '/', '(' .. id .. '0', 'LIMIT', '0', '1') > 0 then
    return 'used'
end
store(id, {
    life = 'living', expires = now_ms + ttl, ttl = ttl, seq = '0', adoption = '0', adopter = '', settled = '',
    ended = '', over = '', label = label, notes = '',
})
return incarnation()
