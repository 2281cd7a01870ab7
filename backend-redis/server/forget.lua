-- cursor, how long a tombstone is kept in ms, most to forget -> cursor, how many were forgotten
-- Ends the sessions that are due, and forgets those that died long ago and left nothing.
local kept_ms, limit = tonumber(ARGV[2]), tonumber(ARGV[3])
local cursor, page = unpack(call('HSCAN', SESSIONS, ARGV[1], 'COUNT', '200'))
local old = {}
for at = 1, #page, 2 do
    local id, session = page[at], parse_session(page[at + 1])
    if session.life == 'living' and session.expires <= now_ms then
        die(id, session)
    elseif session.life == 'dead' and #old < limit and (tonumber(session.ended) or now_ms) + kept_ms <= now_ms
        and call('HEXISTS', INTENTS, id) == 0
        and #call('ZRANGEBYLEX', STEPS, '[' .. id .. '/', '(' .. id .. '0', 'LIMIT', '0', '1') == 0 then
        old[#old + 1] = id
    end
end
many('HDEL', SESSIONS, old)
tell_if_freed()
return { cursor, #old }
