-- key, version -> 1 if what is somebody else's there was still as it was seen, and is gone now
local key, version = ARGV[1], ARGV[2]
local value = call('HGET', RECORDS, key)
local before = value and parse(key, value) or {}
local foreign = {}
local after = without(before, function(entry)
    local how = standing(entry, meet)
    if how == 'counts' or how == 'gone' then
        return false
    end
    foreign[#foreign + 1] = entry.line
    return true
end)
if #foreign == 0 or redis.sha1hex(table.concat(foreign, '\n')) ~= version then
    tell_if_freed()
    return 0
end
save(key, before, after)
flush()
call('SPUBLISH', WAKE, key)
tell_if_freed()
return 1
