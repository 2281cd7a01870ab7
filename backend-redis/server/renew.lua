-- id, seq, the acknowledged seq, over, the incarnation or nothing, grants, the TTL or nothing, then 'keep', 'drop', or 'put'
-- with the intent
-- -> 'living', with the notes behind it; 'overtaken', 'forgotten' or 'dead'; or the incarnation, where it is another one
local id, seq, acknowledged, over, meant, granted, ttl, change, intent = unpack(ARGV)
local session = load(id)
if not session then
    return 'dead'
end
if session == UNREADABLE then
    return corrupt('the session record cannot be understood')
end
if session.life ~= 'living' then
    return 'dead'
end
local here = meant ~= '' and incarnation()
if here and here ~= meant then
    return here
end
for from, to in gmatch(granted, '(%d+)-(%d+)') do
    -- No session has given out as many numbers as are exact.
    if #to > 15 then
        return 'forgotten'
    end
    for n = tonumber(from), tonumber(to) do
        -- An empty line behind the name is of one that only waits, as it stood before what was granted since was lost.
        local batch = '[' .. id .. '/' .. text(n) .. '\n'
        if not call('ZRANGEBYLEX', BATCHES, batch .. '\11', batch .. '\255', 'LIMIT', '0', '1')[1] then
            return 'forgotten'
        end
    end
end
if less(session.seq, acknowledged) then
    return 'forgotten'
end
if not less(session.seq, seq) then
    return 'overtaken'
end
if change == 'put' then
    call('HSET', INTENTS, id, intent)
elseif change == 'drop' then
    call('HDEL', INTENTS, id)
end
freed = session.over ~= over
if ttl ~= '' then
    session.ttl = ttl
end
session.seq, session.over, session.expires = seq, over, now_ms + session.ttl
store(id, session)
tell_if_freed()
return 'living' .. session.notes
