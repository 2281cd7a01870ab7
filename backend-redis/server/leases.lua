-- ids -> for each how many milliseconds are left of its lease; -1 of one that does not live, or cannot be understood
local left = {}
for at = 1, #ARGV do
    local session = seen(ARGV[at])
    left[at] = session.life == 'living' and text(math.max(session.expires - now_ms, 0)) or '-1'
end
return left
