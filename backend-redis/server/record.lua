-- Lists below; with these, a record as people see it: key, version, more, holders, and behind them those who wait. Nothing if
-- nobody there counts.
local function shown(key, entries, below)
    local listed = list()
    local foreign, waiters = {}, {}
    local function show(entry, modes)
        local how = standing(entry, seen)
        if how == 'counts' and entry.place then
            waiters[#waiters + 1] = { key = key, entry = entry, modes = modes }
        elseif how ~= 'gone' then
            enlist(listed, key, entry, how, modes, seen)
        end
        return how
    end
    for _, entry in ipairs(entries) do
        local how = show(entry, ON_KEY)
        if how ~= 'counts' and how ~= 'gone' then
            foreign[#foreign + 1] = entry.line
        end
    end
    if below then
        local known = {}
        local function each(path, others)
            -- A path may be in both sets.
            for _, entry in ipairs(known[path] and {} or others) do
                show(entry, BELOW)
            end
            known[path] = true
            return listed.more == 1 or #listed.holders + #waiters > LISTED
        end
        local counted = { paths = 0 }
        if not each_below(key, WRITES, each, nil, counted) then
            each_below(key, READS, each, nil, counted)
        end
        if counted.paths > LOOKED_AT then
            -- Of what may stand behind so many that do not count nothing is known.
            if #listed.holders + #waiters == 0 then
                too_many_below()
            end
            listed.more = 1
        end
    end
    enlist_waiters(listed, waiters, seen)
    local version = #foreign > 0 and redis.sha1hex(table.concat(foreign, '\n')) or ''
    return #listed.holders > 0 and { key, version, listed.more, listed.holders } or nil
end
