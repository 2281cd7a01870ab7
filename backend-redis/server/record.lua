-- Lists below; with these, a record as people see it: key, version, more, holders. Nothing if nobody there counts.
local function shown(key, entries, below)
    local listed = list()
    local foreign = {}
    for _, entry in ipairs(entries) do
        local how = standing(entry, seen)
        if how ~= 'gone' then
            enlist(listed, key, entry, how, ON_KEY, seen)
            if how ~= 'counts' then
                foreign[#foreign + 1] = entry.line
            end
        end
    end
    if below then
        local function each(_, others)
            for _, entry in ipairs(others) do
                local how = standing(entry, seen)
                if how ~= 'gone' then
                    enlist(listed, key, entry, how, BELOW, seen)
                end
            end
            return listed.more == 1
        end
        if not each_below(key, WRITES, each) then
            each_below(key, READS, each)
        end
    end
    local version = #foreign > 0 and redis.sha1hex(table.concat(foreign, '\n')) or ''
    return #listed.holders > 0 and { key, version, listed.more, listed.holders } or nil
end
