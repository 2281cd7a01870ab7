-- session, n, m, the incarnation or nothing, nothing or 'waits', and then for each claim its want (with the limit behind it, of
-- a share) and its key. One that waits has one claim, and behind that word, a line each, the waiters that it may pass, as it has
-- seen them: session/n, place/passed/may_go
-- -> the token; 'void'; 'moved'; 'again' when so much had to be removed that it was done first;
--    'busy', more, and for each refused claim: which one, more, in how many ms somebody in the way is due (or -1), holders
local me, n, m = ARGV[1], ARGV[2], ARGV[3]
local waits, passes = ARGV[5] ~= '', {}
for name, seen_as in gmatch(ARGV[5], '\n(%x+/%d+)/(%d+/%d+/%d)') do
    passes[name] = seen_as
end
local GONE_AT_ONCE = 2000

local mine = meet(me)
if mine == UNREADABLE then
    return corrupt('the session record cannot be understood')
end
if mine.life ~= 'living' or is_over(mine, n) then
    tell_if_freed()
    return { 'void' }
end
if is_elsewhere then
    tell_if_freed()
    return { 'moved' }
end
local drawn, wrong = next_token()
if not drawn then
    return corrupt(wrong)
end

local fields, place, ancestors = {}, {}, {}
local function look_at(key)
    if not place[key] then
        fields[#fields + 1] = key
        place[key] = #fields
    end
end
for at = 7, #ARGV, 2 do
    local key = ARGV[at]
    look_at(key)
    if is_path(key) then
        ancestors[key] = ancestors_of(key)
        for _, ancestor in ipairs(ancestors[key]) do
            look_at(ancestor)
        end
    end
end
local values = values_of(RECORDS, fields)
local parsed = {}
local function record(key)
    local entries = parsed[key]
    if not entries then
        local value = place[key] and values[place[key]]
        if not place[key] then
            value = call('HGET', RECORDS, key)
        end
        entries = value and opened(key, value) or {}
        parsed[key] = entries
    end
    return entries
end

-- What does not count and was met, by key.
local gone, gone_count = {}, 0
local function stands(key, entry, entries)
    local how = standing(entry, meet)
    if how == 'gone' and not entry.gone then
        entry.gone = true
        gone[key], parsed[key] = entries, entries
        gone_count = gone_count + 1
    end
    return how
end

local function is_mine(entry)
    return entry.session == me and entry.n == n
end

-- How the grant that asks stands on the key already, if it does. It need not be among the first there.
local function mine_on(key)
    local value = values[place[key]]
    local name = me .. '/' .. n .. '/'
    local at = value and find(value, name, 1, true)
    while at do
        local is_line = at == 2 or (at > 2 and byte(value, at - 2) == 10)
        local entry = is_line and read_entry(is_path(key) and TREE or FLAT, match(value, '^[^\n]+', at - 1))
        if entry and entry.want then
            return entry
        end
        at = find(value, name, at + 1, true)
    end
    return nil
end

-- What was found in the way of one claim: holders, and by themselves the shares where they have a limit, and waiters.
local function found_for(want, limit, own)
    return {
        want = want, limit = limit, listed = list(), shares = {}, waiters = {}, known = {},
        -- Who has no place in line stands behind everybody.
        place = waits and own and own.place or math.huge,
    }
end

-- Whether somebody stays in the way, whoever is let by: then nobody behind the own place matters.
local function is_refused(found)
    return #found.listed.holders > 0
        or (not next(passes) and #found.shares + #found.waiters >= (found.limit or 1))
end

-- Whether as many are found as are listed, and as are in the way even if others of the waiters are let by.
local function is_enough(found)
    return found.listed.more == 1 or #found.shares + #found.waiters > (found.limit or 0) + LISTED
end

local function look(found, key, path, entries, modes)
    local at = 1
    local entry = entry_at(entries, at)
    while entry do
        local is_share = found.limit and entry.want == 's'
        local matters = is_share or not entry.want or in_the_way(found.want, me, m, entry)
        if entry.place and entry.place >= found.place then
            if is_refused(found) then
                return
            end
        elseif not is_mine(entry) and (matters or not entry.place) then
            local how = stands(path, entry, entries)
            if how == 'counts' and entry.place then
                if not found.known[entry] then
                    found.known[entry], parsed[path] = true, entries
                    found.waiters[#found.waiters + 1] = { key = key, entry = entry, modes = modes, path = path }
                end
            elseif how == 'counts' and is_share then
                found.shares[#found.shares + 1] = entry
            elseif how ~= 'gone' and (how ~= 'counts' or matters) then
                enlist(found.listed, key, entry, how, modes, meet)
            end
            if is_enough(found) then
                found.enough = true
                return
            end
        end
        at = at + 1
        entry = entry_at(entries, at)
    end
end

-- Waiters that make room, by key, and those that are passed if the request is granted.
local removed, freed_names, passed = {}, {}, {}

-- Sees whether a waiter may go, and whether who asks may have what it asks for all the same: because that waiter does not go
-- although it may, or because it waits for the session of who asks.
local function is_let_by(waiter, limit)
    local entry, path = waiter.entry, waiter.path
    local seen_as = passes[entry.session .. '/' .. entry.n]
    local keeper = keeper_of(entry, path, limit, seen_as and sub(seen_as, -1) == '0' and me, record)
    entry.may_go = not keeper
    if keeper == 'somebody'
        or seen_as ~= text(entry.place) .. '/' .. text(entry.passed) .. '/' .. (keeper and '0' or '1') then
        return false
    end
    if keeper then
        passed[#passed + 1] = waiter
    elseif not entry.removed then
        entry.removed = true
        removed[path] = record(path)
        freed_names[#freed_names + 1] = path
    end
    return true
end

-- How many are in the way so far, or do not count.
local function met(found)
    return #found.listed.holders + #found.shares + #found.waiters + gone_count
end

local function obstacles(want, limit, key)
    local own = mine_on(key)
    if own and not own.place and ON_KEY[own.want] == ON_KEY[want] then
        -- The request was sent before: whoever came since has come beside it, or waits.
        return list()
    end
    local found = found_for(want, limit, own)
    -- Who wants no share does not know how many there may be, and takes each of them for the last.
    local limit_in_line = limit
    if want ~= 's' then
        limit_in_line = 1
    end
    local listed = found.listed
    for _, ancestor in ipairs(ancestors[key] or {}) do
        if values[place[ancestor]] and not found.enough then
            look(found, ancestor, ancestor, record(ancestor), ON_KEY)
        end
    end
    if values[place[key]] and not found.enough then
        look(found, key, key, record(key), ON_KEY)
    end
    if TREE[want] and not found.enough then
        local beside = 0
        local function each(path, entries)
            -- It is refused: of the others some are listed.
            if #found.listed.holders > 0 then
                beside = beside + 1
                found.enough = beside > 1000
            end
            if not found.enough then
                local before = met(found)
                look(found, key, path, parsed[path] or entries, BELOW)
                if met(found) == before and #found.listed.holders == 0 then
                    pass_by()
                end
            end
            return found.enough or gone_count > GONE_AT_ONCE
        end
        -- What the owner holds alone is not in his way.
        local own_paths = own_below(me, m)
        local enough = each_below(key, WRITES, each, own_paths)
        if not enough and want == 'w' then
            each_below(key, READS, each, own_paths)
        end
    end
    if gone_count > GONE_AT_ONCE then
        return listed
    end

    table.sort(found.waiters, function(one, other)
        return one.entry.place < other.entry.place
    end)
    local waiters, shares = {}, #found.shares
    for at, waiter in ipairs(found.waiters) do
        if not (waits and #listed.holders + at <= LISTED and is_let_by(waiter, limit_in_line)) then
            waiters[#waiters + 1] = waiter
            shares = shares + (waiter.entry.want == 's' and 1 or 0)
        end
    end
    local is_full = limit and shares >= limit
    for _, entry in ipairs(is_full and found.shares or {}) do
        enlist(listed, key, entry, 'counts', ON_KEY, meet)
    end
    enlist_waiters(listed, without(waiters, function(waiter)
        return limit and not is_full and waiter.entry.want == 's'
    end), meet)
    if found.enough then
        listed.more = 1
    end
    return listed
end

local function is_gone(entry)
    return entry.gone or entry.removed
end

-- Notes that of a record only those stay who are not gone.
local function save_without_gone(key, entries, new)
    local before = complete(entries)
    local after = without(before, is_gone)
    for _, entry in ipairs(before) do
        if is_gone(entry) then
            -- Most batches have one key; others are left to the sweep.
            remove(BATCHES, batch_of(entry, key))
        end
    end
    after[#after + 1] = new
    save(key, before, after)
end

local function due_in(listed)
    local least = -1
    for _, holder in ipairs(listed.holders) do
        local session = holder[5] == 'living' and sessions[sub(holder[2], 2, 33)]
        if session then
            local left = math.max(session.expires - now_ms, 0)
            least = least < 0 and left or math.min(least, left)
        end
    end
    return text(least)
end

local busy = { 'busy', 0 }
for at = 6, #ARGV, 2 do
    local key = ARGV[at + 1]
    local want, limit = sub(ARGV[at], 1, 1), tonumber(sub(ARGV[at], 2))
    if values[place[key]] or TREE[want] then
        local listed = obstacles(want, limit, key)
        if gone_count > GONE_AT_ONCE then
            for path, entries in pairs(gone) do
                save_without_gone(path, entries)
            end
            flush()
            tell_if_freed()
            return { 'again' }
        end
        if #listed.holders > 0 then
            if #busy == 2 + LISTED then
                busy[2] = 1
                break
            end
            busy[#busy + 1] = { (at - 6) / 2, listed.more, due_in(listed), listed.holders }
        end
    end
end

-- Tells of the waiters that made room, as a release does.
local function tell()
    if #freed_names > 0 then
        call('SPUBLISH', WAKE, table.concat(freed_names, '\n'))
    end
    tell_if_freed()
end

local function count_waiters(entries)
    local count = 0
    for _, entry in ipairs(entries) do
        count = count + (entry.place and not is_gone(entry) and 1 or 0)
    end
    return count
end

-- Whether one more may stand in line. Where it is full, those are looked at now and then who were not yet: they may not
-- count. The server does nothing else meanwhile.
local function has_room(entries)
    if count_waiters(entries) < MAX_WAITERS then
        return true
    end
    if now_ms % 10 > 0 then
        return false
    end
    for _, entry in ipairs(entries) do
        if entry.place and not is_gone(entry) then
            entry.gone = standing(entry, meet) == 'gone'
        end
    end
    return count_waiters(entries) < MAX_WAITERS
end

-- Takes a place for who is refused, if there is one, and removes who made room.
local function stand_in_line(key, want)
    local value = values[place[key]]
    local entries = record(key)
    -- A record without a line is somebody else's, and stays as it is.
    local may_stand = not mine_on(key) and (not value or find(value, '[^\n]'))
        and has_room(complete(entries))
    if may_stand then
        -- Where the memory is full nobody stands in line, and is refused all the same.
        local kept = redis.pcall('HSET', RECORDS, TOKEN, drawn.token)
        may_stand = type(kept) ~= 'table' or not kept.err
    end
    if may_stand then
        keep_token(drawn)
        local waiter = {
            want = want, session = me, n = n, place = tonumber(drawn.token),
            line = want .. me .. '/' .. n .. '/' .. m .. '/' .. text(now_ms) .. '/' .. drawn.token .. '/0',
        }
        save_without_gone(key, entries, waiter)
        add(BATCHES, batch_of(waiter, key))
        removed[key] = nil
    end
    for path, others in pairs(removed) do
        save_without_gone(path, others)
    end
    flush()
end

if #busy > 2 then
    if waits then
        stand_in_line(ARGV[7], sub(ARGV[6], 1, 1))
    end
    tell()
    return busy
end

for _, waiter in ipairs(passed) do
    local entry = waiter.entry
    entry.line = match(entry.line, '^(.*/)%d+$') .. text(math.min(entry.passed + 1, 999999999))
    gone[waiter.path] = record(waiter.path)
end
for path, entries in pairs(removed) do
    gone[path] = entries
end
local since = '/' .. n .. '/' .. m .. '/' .. text(now_ms)
local batch = { me .. '/' .. n }
local waited = {}
for at = 6, #ARGV, 2 do
    local key, want = ARGV[at + 1], sub(ARGV[at], 1, 1)
    local line = want .. me .. since
    batch[#batch + 1] = key
    if values[place[key]] then
        local before = complete(record(key))
        -- Behind the holders, and before those who wait.
        local after, new = {}, { line = line, want = want }
        for _, entry in ipairs(before) do
            if is_mine(entry) then
                if entry.place then
                    waited[#waited + 1] = batch_of(entry, key)
                end
            elseif not is_gone(entry) then
                if entry.place and new then
                    after[#after + 1], new = new, nil
                end
                after[#after + 1] = entry
            else
                remove(BATCHES, batch_of(entry, key))
            end
        end
        after[#after + 1] = new
        save(key, before, after)
        gone[key] = nil
    else
        hset[#hset + 1] = key
        hset[#hset + 1] = line
        if TREE[want] then
            add(want == 'w' and WRITES or READS, key)
        end
    end
end
for path, entries in pairs(gone) do
    save_without_gone(path, entries)
end
add(BATCHES, table.concat(batch, '\n'))
keep_token(drawn)
flush()
-- It is found by this one until it is found by the other one.
many('ZREM', BATCHES, waited)
tell()
return drawn.token
