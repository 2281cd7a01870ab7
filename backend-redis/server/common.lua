-- What every script begins with, or goes on with where a shorter way does not do. The shape of what is stored, version 4; all keys have one hash tag:
--
-- records   hash: a key that is held -> its holders, a line each: want, session/n/m/since, where want is the first
--           letter of create, upsert, share, read or write, session/n the grant, session/m the owner, since in
--           milliseconds since 1970. Who holds nothing and waits has a line, too, behind those of the holders and in the
--           order of places, which ends in /place/passed: its place in the line of the key, which is the token of that
--           moment, and how often it was passed. A line that is anything else is somebody else's. The last token is
--           under the field '///', which is no key. (Version 1 had it under the empty one, 2 and 3 under '/' and
--           '//'.)
-- writes,   sorted sets of the paths that somebody holds to write or to read, or waits for, in order of bytes: what is held
-- reads     below a path stands in the range from 'path/' to 'path0'. A line that is somebody else's counts as a writer's. Who
--           writes a path's record by hand has to enter it there, too: else it is met on that path alone.
-- sessions  hash: id -> life, expires_ms, retired, ttl_ms, seq, adoption, adopter, settled, ended_ms, label, notes; a line
--           each.
-- intents   hash: id -> the token, and behind the first end of a line the payload.
-- batches   sorted set: session/n and the keys of that grant, a line each; to find what a session holds. Of one that waits
--           there is an empty line before the key: what is only waited for is no grant that a renewal could find.
-- due       sorted set: id -> in milliseconds since 1970, when a sweep has to look at the session: one that lives when it
--           expires, a dead one when it may be forgotten. One that is abandoned is not in it.
-- meta      hash: version, created (in microseconds since 1970), incarnation (of the server when the last token was
--           raised). Another version keeps the token elsewhere, so that who is connected when it is made notices.
--
-- Everything is checked before anything is written. Of the writes, those that decide come last: an entry of writes,
-- reads or batches without its line in records says nothing. A death is a write of its own and may come before.

local RECORDS, WRITES, READS, SESSIONS, INTENTS, BATCHES, META, WAKE, DUE = unpack(KEYS)
local VERSION, TOKEN = '4', '///'
local call = redis.call
local match, gmatch, sub, byte, find = string.match, string.gmatch, string.sub, string.byte, string.find
local clock = call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
local now_ms = math.floor(now_us / 1000)

-- Numbers in full: tostring would round them.
local function text(number)
    return string.format('%.0f', number)
end

local function corrupt(what)
    return redis.error_reply('LKCORRUPT ' .. what)
end

-- Calls a command with many arguments, so many at a time that they fit Lua's stack; an even number of them.
local function many(command, key, arguments)
    for from = 1, #arguments, 4000 do
        call(command, key, unpack(arguments, from, math.min(from + 3999, #arguments)))
    end
end

local function values_of(key, fields)
    if #fields == 0 then
        return {}
    end
    if #fields <= 4000 then
        return call('HMGET', key, unpack(fields))
    end
    local all = {}
    for from = 1, #fields, 4000 do
        for _, value in ipairs(call('HMGET', key, unpack(fields, from, math.min(from + 3999, #fields)))) do
            all[#all + 1] = value
        end
    end
    return all
end

local function is_path(key)
    return byte(key) == 47
end

-- Sessions ------------------------------------------------------------------------------------------------------------

local UNREADABLE = { life = 'unreadable' }
local LIVES = { living = true, abandoned = true, dead = true }
-- How long one that has died is remembered: `TOMBSTONE_KEPT` of lockcore.
local KEPT_MS = 86400000
local sessions = {}
local freed = false

local function parse_session(record)
    local life, expires, over, ttl, seq, adoption, adopter, settled, ended, label, notes = match(record,
        '^(%l+)\n(%d+)\n([%d,-]*)\n(%d+)\n(%d+)\n(%d+)\n(%x*)\n(%d*)\n(%d*)\n([^\n]*)\n([^\n]*)$')
    if not LIVES[life] then
        return UNREADABLE
    end
    return {
        life = life, expires = tonumber(expires), ttl = ttl, seq = seq, adoption = adoption, adopter = adopter,
        settled = settled, ended = ended, over = over, label = label, notes = notes,
    }
end

local function session_text(session)
    return table.concat({
        session.life, text(session.expires), session.over, session.ttl, session.seq, session.adoption,
        session.adopter, session.settled, session.ended, session.label, session.notes,
    }, '\n')
end

local function forgotten_at(session)
    return (tonumber(session.ended) or now_ms) + KEPT_MS
end

local function store(id, session)
    if session.life == 'abandoned' then
        call('ZREM', DUE, id)
    else
        call('ZADD', DUE, text(session.life == 'living' and session.expires or forgotten_at(session)), id)
    end
    call('HSET', SESSIONS, id, session_text(session))
end

-- The record as it stands; nil if there is none.
local function load(id)
    local record = call('HGET', SESSIONS, id)
    return record and parse_session(record) or nil
end

-- The death of a living session: it is abandoned if it leaves an intent.
local function die(id, session)
    session.life = call('HEXISTS', INTENTS, id) == 1 and 'abandoned' or 'dead'
    session.ended = text(now_ms)
    store(id, session)
    freed = true
end

-- The session, made dead first if it is due, or given a tombstone if there is no record of it.
local function meet(id)
    local session = sessions[id]
    if session then
        return session
    end
    session = load(id)
    if not session then
        session = {
            life = 'dead', expires = 0, ttl = '0', seq = '0', adoption = '0', adopter = '', settled = '',
            ended = text(now_ms), over = '', label = '', notes = '',
        }
        store(id, session)
    elseif session.life == 'living' and session.expires <= now_ms then
        die(id, session)
    end
    sessions[id] = session
    return session
end

-- The session as it stands, for lists; nothing is written.
local function seen(id)
    local session = sessions[id]
    if not session then
        session = load(id) or { life = 'dead', over = '', label = '' }
        sessions[id] = session
    end
    return session
end

-- Decimal numbers may be greater than what Lua counts exactly.
local function less(one, other)
    return #one < #other or (#one == #other and one < other)
end

-- Whether that number of a session is over. The ranges are taken apart once: a sweep asks for each grant.
local function is_over(session, n)
    local over = session.over
    if session.ranges_of ~= over then
        local firsts, lasts = {}, {}
        for from, to in gmatch(over, '(%d+)-(%d+)') do
            firsts[#firsts + 1], lasts[#lasts + 1] = from, to
        end
        session.ranges_of, session.firsts, session.lasts = over, firsts, lasts
    end
    -- The first range that does not end before it.
    local lasts, low = session.lasts, 1
    local high = #lasts + 1
    while low < high do
        local middle = math.floor((low + high) / 2)
        if less(lasts[middle], n) then
            low = middle + 1
        else
            high = middle
        end
    end
    return low <= #lasts and not less(n, session.firsts[low])
end

local function tell_if_freed()
    if freed then
        call('SPUBLISH', WAKE, '*')
    end
end

-- Tells the owner of a session that it has news, on the channel that has the name of the sessions' key.
local function tell_owner(id)
    call('SPUBLISH', SESSIONS, id)
end

-- Records -------------------------------------------------------------------------------------------------------------

local FLAT = { c = true, u = true, s = true }
local TREE = { w = true, r = true }

-- A holder, or with a place one that waits; without a want it is somebody else's.
local function read_entry(wants, line)
    local want, id, n, m, rest = match(line, '^([cusrw])([0-9a-f]+)/(%d+)/(%d+)/%d+(.*)$')
    if not want or #id ~= 32 or not wants[want] then
        return { line = line }
    end
    if rest == '' then
        return { line = line, want = want, session = id, n = n, m = m }
    end
    local place, passed = match(rest, '^/(%d+)/(%d+)$')
    -- So long a number is exact.
    if not place or #place > 16 or #passed > 9 then
        return { line = line }
    end
    return { line = line, want = want, session = id, n = n, m = m, place = tonumber(place), passed = tonumber(passed) }
end

-- The entries of a record, none of which is read yet.
local function opened(key, record)
    return { wants = is_path(key) and TREE or FLAT, lines = gmatch(record, '[^\n]+'), record = record }
end

-- An entry of a record, if there are so many. It is the first one, or the one before it was read: of a long line mostly a few
-- matter.
local function entry_at(entries, at)
    if not entries[at] and entries.lines then
        local line = entries.lines()
        if line then
            entries[at] = read_entry(entries.wants, line)
        else
            entries.lines = nil
            if at == 1 then
                entries[1] = { line = entries.record }
            end
        end
    end
    return entries[at]
end

-- The same, all of them read.
local function complete(entries)
    local at = #entries + 1
    while entry_at(entries, at) do
        at = at + 1
    end
    return entries
end

local function parse(key, record)
    return complete(opened(key, record))
end

-- The member of batches for that key alone.
local function batch_of(entry, key)
    return entry.session .. '/' .. entry.n .. (entry.place and '\n\n' or '\n') .. key
end

-- Whether a holder counts: 'counts', 'gone', or what can be said of one that cannot be judged. `judge` is meet or seen.
local function standing(entry, judge)
    if not entry.want then
        return 'unreadable record: ' .. string.gsub(sub(entry.line, 1, 64), '[^\32-\126]', '?')
    end
    local session = judge(entry.session)
    if session == UNREADABLE then
        return 'unreadable session record ' .. entry.session
    end
    -- What nobody waits for any more keeps nobody waiting.
    if session.life == 'dead' or (entry.place and session.life ~= 'living') or is_over(session, entry.n) then
        return 'gone'
    end
    return 'counts'
end

local hset, hdel, adds, removals = {}, {}, { [WRITES] = {}, [READS] = {}, [BATCHES] = {} },
    { [WRITES] = {}, [READS] = {}, [BATCHES] = {} }

local function add(set, member)
    local members = adds[set]
    members[#members + 1] = '0'
    members[#members + 1] = member
end

local function remove(set, member)
    local members = removals[set]
    members[#members + 1] = member
end

local function has(entries, want)
    for _, entry in ipairs(entries) do
        if entry.want == want or (want == 'w' and not entry.want) then
            return true
        end
    end
    return false
end

-- Notes that a record is to become this one.
local function save(key, before, after)
    if #after == 0 then
        hdel[#hdel + 1] = key
    else
        local lines = {}
        for at, entry in ipairs(after) do
            lines[at] = entry.line
        end
        hset[#hset + 1] = key
        hset[#hset + 1] = table.concat(lines, '\n')
    end
    if is_path(key) then
        for set, want in pairs({ [WRITES] = 'w', [READS] = 'r' }) do
            if has(after, want) then
                add(set, key)
            elseif has(before, want) then
                remove(set, key)
            end
        end
    end
end

-- Writes what was noted.
local function flush()
    -- First what frees memory: then the rest is taken even where the memory is full.
    many('ZREM', BATCHES, removals[BATCHES])
    for _, set in ipairs({ BATCHES, WRITES, READS }) do
        many('ZADD', set, adds[set])
        adds[set] = {}
    end
    many('HSET', RECORDS, hset)
    many('HDEL', RECORDS, hdel)
    many('ZREM', WRITES, removals[WRITES])
    many('ZREM', READS, removals[READS])
    hset, hdel, removals = {}, {}, { [WRITES] = {}, [READS] = {}, [BATCHES] = {} }
end

-- Without those that `drop` says to drop.
local function without(entries, drop)
    local kept = {}
    for _, entry in ipairs(entries) do
        if not drop(entry) then
            kept[#kept + 1] = entry
        end
    end
    return kept
end

-- Tokens --------------------------------------------------------------------------------------------------------------

-- The first token of an incarnation, and of a namespace that is made anew, is so far ahead of the clock: what a server
-- that was cut off grants for that long is less, as is what was granted before everything was lost. No token is ever
-- further ahead, for it takes longer than a microsecond to draw one.
local AHEAD_US = 3600000000

-- The next token, or nil and what is wrong.
local function next_token()
    local last = call('HGET', RECORDS, TOKEN)
    if not last then
        local version = call('HGET', META, 'version')
        if version and version ~= VERSION then
            return nil, 'a program of version ' .. version .. ' has made the namespace anew: use another namespace'
        end
        return { token = text(now_us + AHEAD_US), made = not version }
    end
    local number = tonumber(last)
    if not number or number < 0 or number >= 9007199254740991 then
        return nil, 'the counter of the tokens is broken'
    end
    return { token = text(math.max(number + 1, now_us)) }
end

local function keep_token(drawn)
    if drawn.made then
        call('HSET', META, 'version', VERSION, 'created', text(now_us))
    end
    call('HSET', RECORDS, TOKEN, drawn.token)
    return drawn.token
end

-- The first 128 bits of the name of what the server has: another one after each start, and of each that takes over. None
-- where we may not ask. Whoever is told of one that has granted nothing yet has raised its tokens.
local function incarnation()
    local info = redis.pcall('INFO', 'replication')
    local name = type(info) == 'string' and sub(match(info, 'master_replid:(%x+)') or '', 1, 32) or ''
    if name ~= '' and call('HGET', META, 'incarnation') ~= name then
        local drawn = next_token()
        -- What is wrong with the counter is said where a token is wanted.
        if drawn then
            drawn.token = text(math.max(tonumber(drawn.token), now_us + AHEAD_US))
            keep_token(drawn)
            call('HSET', META, 'incarnation', name)
        end
    end
    return name
end

-- Lists ---------------------------------------------------------------------------------------------------------------

local LISTED = 16
local ON_KEY = { c = 'X', u = 'X', s = 'IS', w = 'X', r = 'S' }
local BELOW = { w = 'IX', r = 'IS' }

local function list()
    return { holders = {}, more = 0, known = {} }
end

-- Adds a holder of `key`; who holds something below it holds it in another mode, and is listed once.
local function enlist(listed, key, entry, stands, modes, judge)
    local foreign = stands ~= 'counts'
    local mode = foreign and (modes == BELOW and 'IX' or 'X') or modes[entry.want]
    local name = not foreign and key .. '\n' .. entry.session .. '/' .. entry.n or nil
    local known = name and listed.known[name]
    if known then
        if known[3] == 'IS' then
            known[3] = mode
        end
        return
    end
    if #listed.holders == LISTED then
        listed.more = 1
        return
    end
    local session = not foreign and judge(entry.session)
    local holder = {
        key, entry.line, mode, foreign and stands or session.label, foreign and '' or session.life,
        entry.may_go and 1 or 0,
    }
    listed.holders[#listed.holders + 1] = holder
    if name then
        listed.known[name] = holder
    end
end

-- Waiters, each with how it is listed, in their order.
local function enlist_waiters(listed, waiters, judge)
    table.sort(waiters, function(one, other)
        return one.entry.place < other.entry.place
    end)
    for _, waiter in ipairs(waiters) do
        enlist(listed, waiter.key, waiter.entry, 'counts', waiter.modes, judge)
    end
end

-- So many paths below others are looked at in one script, in which nobody else is served: some 50 ms.
local LOOKED_AT = 50000
local passed_by = 0

local function too_many_below()
    error(redis.error_reply('LKLIMIT more than ' .. LOOKED_AT .. ' paths are held below'))
end

-- One more is in nobody's way.
local function pass_by()
    passed_by = passed_by + 1
    if passed_by > LOOKED_AT then
        too_many_below()
    end
end

-- Calls `each` with every path below this one that is in the set, and its holders, until it answers true. A record that
-- is like `passed` is passed by; in all of a script so many at most. Who counts by himself how much he looks at is told if
-- that was too much, as if `each` had answered true.
local function each_below(key, set, each, passed, counted)
    local from, to = '[' .. key .. '/', '(' .. key .. '0'
    while true do
        local paths = call('ZRANGEBYLEX', set, from, to, 'LIMIT', '0', '500')
        local values = values_of(RECORDS, paths)
        if counted then
            counted.paths = counted.paths + #paths
            if counted.paths > LOOKED_AT then
                return true
            end
        end
        for at, path in ipairs(paths) do
            local value = values[at]
            if value and passed and find(value, passed) then
                if not counted then
                    pass_by()
                end
            elseif value and each(path, parse(path, value)) then
                return true
            end
        end
        if #paths < 500 then
            return false
        end
        from = '(' .. paths[#paths]
    end
end
