-- id, adoption number, adopter, the incarnation or nothing -> 1 if it is settled by that adoption; or 'moved'
local id, adoption, adopter, meant = unpack(ARGV)
if meant ~= '' and incarnation() ~= meant then
    return 'moved'
end
local session = load(id)
if not session then
    return 0
end
if session == UNREADABLE then
    return corrupt('the session record cannot be understood')
end
if session.life == 'abandoned' and session.adopter == adopter and session.adoption == adoption then
    call('HDEL', INTENTS, id)
    session.life, session.ended, session.settled = 'dead', text(now_ms), adoption
    freed = true
elseif session.life ~= 'dead' or session.settled ~= adoption
    or (session.adopter ~= '' and session.adopter ~= adopter) then
    return 0
end
store(id, session)
tell_if_freed()
return 1
