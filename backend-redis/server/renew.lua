-- id, seq, the acknowledged seq, over, then 'keep', 'drop', or 'put' with the intent
-- -> 'living', 'overtaken', 'forgotten' or 'dead'
local id, seq, acknowledged, over, change, intent = unpack(ARGV)
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
session.seq, session.over, session.expires = seq, over, now_ms + session.ttl
store(id, session)
tell_if_freed()
return 'living'
