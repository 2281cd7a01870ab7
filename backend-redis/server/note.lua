-- id, a note -> 1 if there is a record
local id, note = ARGV[1], ARGV[2]
local session = load(id)
if not session then
    return 0
end
if session == UNREADABLE then
    return corrupt('the session record cannot be understood')
end
local notes = session.notes == '' and note or session.notes .. ' ' .. note
while #notes > 4096 do
    notes = match(notes, ' (.*)')
end
session.notes = notes
store(id, session)
tell_owner(id)
return 1
