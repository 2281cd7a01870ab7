-- 'due', 'close', 'revoke' or 'discard', then ids -> the record of each; an empty one cannot be understood
local how = ARGV[1]
local states = {}
for at = 2, #ARGV do
    local id = ARGV[at]
    local session = how ~= 'due' and load(id) or meet(id)
    if session == UNREADABLE then
        states[#states + 1] = ''
    else
        if (how == 'close' or how == 'revoke') and session.life == 'living' then
            die(id, session)
            if how == 'revoke' then
                tell_owner(id)
            end
        elseif how == 'discard' and session.life == 'abandoned' then
            call('HDEL', INTENTS, id)
            session.life, session.ended = 'dead', text(now_ms)
            session.adoption, session.adopter = text(session.adoption + 1), ''
            store(id, session)
            freed = true
        elseif session.life ~= 'living' then
            -- Dead is answered by a write alone.
            store(id, session)
        end
        states[#states + 1] = session_text(session)
    end
end
tell_if_freed()
return states
