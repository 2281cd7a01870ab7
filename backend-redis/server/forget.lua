-- most to look at -> how many were forgotten, whether there may be more to look at
-- Ends the sessions that are due, and forgets those that died long ago and left nothing.
local most = ARGV[1]
local old = {}
local ids = call('ZRANGEBYSCORE', DUE, '-inf', text(now_ms), 'LIMIT', '0', most)
for _, id in ipairs(ids) do
    local session = load(id)
    if session and session.life == 'living' and session.expires <= now_ms then
        die(id, session)
    elseif not session or (session.life == 'dead' and forgotten_at(session) <= now_ms
        and call('HEXISTS', INTENTS, id) == 0
        and #call('ZRANGEBYLEX', BATCHES, '[' .. id .. '/', '(' .. id .. '0', 'LIMIT', '0', '1') == 0) then
        old[#old + 1] = id
    else
        -- It keeps nobody behind it from being looked at.
        call('ZADD', DUE, text(now_ms + KEPT_MS), id)
    end
end
many('ZREM', DUE, old)
many('HDEL', SESSIONS, old)
tell_if_freed()
return { #old, #ids == tonumber(most) and 1 or 0 }
