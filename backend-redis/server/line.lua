-- Who is in whose way, for acquire.lua.

-- So many wait for one key in its line at most: `MAX_WAITERS` of lockcore.
local MAX_WAITERS = 1000

-- Whether a holder that counts is in the way of who wants that as that owner, on the key, on an ancestor or below: between
-- paths that is the same. One that waits is in the way of who came later.
local function in_the_way(want, id, m, entry)
    local same_owner = entry.session == id and entry.m == m
    if want == 'c' then
        return true
    elseif want == 's' then
        return entry.want ~= 's'
    elseif want == 'r' then
        return entry.want == 'w' and not same_owner
    end
    return not same_owner
end

-- What an owner holds below a path by itself: that is not in his way.
local function own_below(id, m)
    return '^[wr]' .. id .. '/%d+/' .. m .. '/%d+$'
end

local function ancestors_of(path)
    local above = {}
    local slash = find(path, '/', 2, true)
    while slash do
        above[#above + 1] = sub(path, 1, slash - 1)
        slash = find(path, '/', slash + 1, true)
    end
    return above
end

-- How much is looked at for those who wait. Where that is too much the first of them are still looked at in full.
local looked_at_for_waiters = { paths = 0 }
-- The same for those who keep one of them out in turn, and entries count as paths do: behind each other they are many.
local looked_at_in_turn = { paths = 0 }

-- Who keeps one that waits for `path` from it by himself: nil if nobody does, 'asked' if a holder of the session `by` does, and
-- 'somebody' if only others do, or came before. `before` is told of these, each with its path, as far as they were looked at;
-- it is one in turn itself where that is counted `in_turn`.
local function next_keeper_of(waiter, path, limit, by, record, before, in_turn)
    local keeper, shares, shares_asked = nil, 0, false
    limit = waiter.want == 's' and limit or nil

    -- Whether that is enough.
    local function meets(where, entries)
        local at = 1
        local entry = entry_at(entries, at)
        -- Whoever stands behind a later one came later, too.
        while entry and not (entry.place and entry.place >= waiter.place) do
            if in_turn then
                in_turn.paths = in_turn.paths + 1
                if in_turn.paths > LOOKED_AT then
                    return true
                end
            end
            local is_itself = entry.session == waiter.session and entry.n == waiter.n
            local is_share = limit and entry.want == 's'
            local matters = not entry.want or is_share or in_the_way(waiter.want, waiter.session, waiter.m, entry)
            local how = not is_itself and matters and standing(entry, meet) or 'gone'
            local is_asked = by and how == 'counts' and entry.session == by and not entry.place
            if how == 'counts' and is_share then
                -- Where the limit is reached each of them keeps it out.
                shares, shares_asked = shares + 1, shares_asked or is_asked
                is_asked = shares_asked
                how = shares >= limit and how or 'gone'
            end
            if how ~= 'gone' then
                keeper = is_asked and 'asked' or 'somebody'
                if is_asked or not by then
                    return true
                end
                -- Whoever keeps out a share that came before keeps out this one, too.
                if entry.place and not is_share then
                    before(entry, where)
                end
            end
            at = at + 1
            entry = entry_at(entries, at)
        end
        return false
    end

    local enough = false
    for _, ancestor in ipairs(is_path(path) and ancestors_of(path) or {}) do
        enough = enough or meets(ancestor, record(ancestor))
    end
    enough = enough or meets(path, record(path))
    if is_path(path) and not enough then
        local own = own_below(waiter.session, waiter.m)
        enough = each_below(path, WRITES, meets, own, in_turn or looked_at_for_waiters)
        if not enough and waiter.want == 'w' then
            enough = each_below(path, READS, meets, own, in_turn or looked_at_for_waiters)
        end
        if enough and not keeper then
            keeper = 'somebody'
        end
    end
    return keeper
end

-- Who keeps one that waits for `path` from it: nil if nobody does, 'asked' if a holder of the session `by` does, or keeps out
-- one that came before and is waited for, and so on; else 'somebody'. A share has the limit of who asks: it is that of all who
-- want one. `record` has the entries of a key.
local function keeper_of(waiter, path, limit, by, record)
    local left, known = {}, { [waiter.session .. '/' .. waiter.n] = true }
    local function before(entry, where)
        local name = entry.session .. '/' .. entry.n
        if not known[name] then
            known[name] = true
            left[#left + 1] = { entry = entry, path = where }
        end
    end
    local keeper = next_keeper_of(waiter, path, limit, by, record, before)
    local at = 1
    while left[at] and keeper ~= 'asked' and looked_at_in_turn.paths <= LOOKED_AT do
        local one = left[at]
        local above = is_path(one.path) and #ancestors_of(one.path) or 0
        looked_at_in_turn.paths = looked_at_in_turn.paths + above + 1
        local its = next_keeper_of(one.entry, one.path, limit, by, record, before, looked_at_in_turn)
        keeper = its == 'asked' and its or keeper
        at = at + 1
    end
    return keeper
end
