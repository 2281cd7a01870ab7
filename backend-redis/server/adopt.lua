-- 'take' or 'give up', id, the number seen, the next one, adopter, the incarnation or nothing
-- -> nothing, or the new token and the intent; or 'moved'
local how, id, was, number, adopter, meant = unpack(ARGV)
-- Nobody may have asked for it since a failover.
local here = incarnation()
if meant ~= '' and here ~= meant then
    return 'moved'
end
local session
if how == 'take' then
    session = load(id)
else
    -- Also of a session that is not abandoned yet: an adoption that is under way may reach it later.
    session = meet(id)
    tell_if_freed()
end
if session == UNREADABLE then
    return corrupt('the session record cannot be understood')
end
if not session then
    return {}
end
local mine = session.adoption == number and session.adopter == adopter
if session.adoption ~= was and not mine then
    return {}
end
if how ~= 'take' then
    session.adoption, session.adopter = text(session.adoption + 1), ''
    store(id, session)
    return {}
end
if session.life ~= 'abandoned' then
    return {}
end
local intent = call('HGET', INTENTS, id)
if not intent or not match(intent, '^%d+\n') then
    return corrupt('the intent of an abandoned session is gone or broken')
end
local drawn, wrong = next_token()
if not drawn then
    return corrupt(wrong)
end
session.adoption, session.adopter = number, adopter
keep_token(drawn)
store(id, session)
return { drawn.token, intent }
