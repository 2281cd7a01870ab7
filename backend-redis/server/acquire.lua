-- session, n, m, the incarnation or nothing, then for each claim its want (with the limit behind it, of a share) and its
-- key
-- -> the token; 'void'; 'moved'; 'again' when so much had to be removed that it was done first;
--    'busy', more, and for each refused claim: which one, more, in how many ms somebody in the way is due (or -1), holders
local me, n, m = ARGV[1], ARGV[2], ARGV[3]
local GONE_AT_ONCE = 2000

local mine = meet(me)
if mine == UNREADABLE then
    return corrupt('the session record cannot be understood')
end
if mine.life ~= 'living' or is_over(mine.over, n) then
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
for at = 6, #ARGV, 2 do
    local key = ARGV[at]
    look_at(key)
    if is_path(key) then
        local above = {}
        local slash = string.find(key, '/', 2, true)
        while slash do
            local ancestor = sub(key, 1, slash - 1)
            above[#above + 1] = ancestor
            look_at(ancestor)
            slash = string.find(key, '/', slash + 1, true)
        end
        ancestors[key] = above
    end
end
local values = values_of(RECORDS, fields)
local parsed = {}
local function record(key)
    local entries = parsed[key]
    if not entries then
        entries = parse(key, values[place[key]])
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
        gone[key] = entries
        gone_count = gone_count + 1
    end
    return how
end

local function is_mine(entry)
    return entry.session == me and entry.n == n
end

-- Whether a holder that counts is in the way, on the key, on an ancestor or below: between paths that is the same.
local function in_the_way(want, entry)
    local same_owner = entry.session == me and entry.m == m
    if want == 'c' then
        return true
    elseif want == 's' then
        return entry.want ~= 's'
    elseif want == 'r' then
        return entry.want == 'w' and not same_owner
    end
    return not same_owner
end

local function look(listed, want, key, path, entries, modes)
    for _, entry in ipairs(entries) do
        if not is_mine(entry) then
            local how = stands(path, entry, entries)
            if how ~= 'gone' and (how ~= 'counts' or in_the_way(want, entry)) then
                enlist(listed, key, entry, how, modes, meet)
                if listed.more == 1 then
                    return
                end
            end
        end
    end
end

local function obstacles(want, limit, key)
    local listed = list()
    for _, ancestor in ipairs(ancestors[key] or {}) do
        if values[place[ancestor]] and listed.more == 0 then
            look(listed, want, ancestor, ancestor, record(ancestor), ON_KEY)
        end
    end
    local held = values[place[key]]
    if held and listed.more == 0 then
        look(listed, want, key, key, record(key), ON_KEY)
    end
    if held and limit then
        local shares = {}
        for _, entry in ipairs(record(key)) do
            if entry.want == 's' and not is_mine(entry) and stands(key, entry, record(key)) == 'counts' then
                shares[#shares + 1] = entry
            end
        end
        if #shares >= limit then
            for _, entry in ipairs(shares) do
                enlist(listed, key, entry, 'counts', ON_KEY, meet)
            end
        end
    end
    if TREE[want] and listed.more == 0 then
        local function each(path, entries)
            look(listed, want, key, path, entries, BELOW)
            return listed.more == 1 or gone_count > GONE_AT_ONCE
        end
        -- What the owner holds alone is not in his way.
        local own = '^[wr]' .. me .. '/%d+/' .. m .. '/%d+$'
        local enough = each_below(key, WRITES, each, own)
        if not enough and want == 'w' then
            each_below(key, READS, each, own)
        end
    end
    return listed
end

local function is_gone(entry)
    return entry.gone
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
for at = 5, #ARGV, 2 do
    local key = ARGV[at + 1]
    local want, limit = sub(ARGV[at], 1, 1), tonumber(sub(ARGV[at], 2))
    if values[place[key]] or TREE[want] then
        local listed = obstacles(want, limit, key)
        if gone_count > GONE_AT_ONCE then
            for path, entries in pairs(gone) do
                save(path, entries, without(entries, is_gone))
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
            busy[#busy + 1] = { (at - 5) / 2, listed.more, due_in(listed), listed.holders }
        end
    end
end
if #busy > 2 then
    tell_if_freed()
    return busy
end

local since = '/' .. n .. '/' .. m .. '/' .. text(now_ms)
local step = { me .. '/' .. n }
for at = 5, #ARGV, 2 do
    local key, want = ARGV[at + 1], sub(ARGV[at], 1, 1)
    local line = want .. me .. since
    step[#step + 1] = key
    if values[place[key]] then
        local before = record(key)
        local after = without(before, function(entry)
            return entry.gone or is_mine(entry)
        end)
        after[#after + 1] = { line = line, want = want }
        save(key, before, after)
        gone[key] = nil
        for _, entry in ipairs(before) do
            if entry.gone then
                -- Most steps have one key; others are left to the sweep.
                remove(STEPS, entry.session .. '/' .. entry.n .. '\n' .. key)
            end
        end
    else
        hset[#hset + 1] = key
        hset[#hset + 1] = line
        if TREE[want] then
            add(want == 'w' and WRITES or READS, key)
        end
    end
end
for path, entries in pairs(gone) do
    save(path, entries, without(entries, is_gone))
end
add(STEPS, table.concat(step, '\n'))
keep_token(drawn)
flush()
tell_if_freed()
return drawn.token
