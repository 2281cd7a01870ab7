-- the session or nothing, after which batch, most holders to remove -> how many were, after which batch to go on, how many
-- sessions were looked at
local which, from, limit = ARGV[1], ARGV[2], tonumber(ARGV[3])
local to = '+'
local sessions, before_it = 0, match(from, '^%x*')
if which ~= '' then
    to = '(' .. which .. '0'
end
if from ~= '' then
    from = '(' .. from
else
    from = which ~= '' and '[' .. which .. '/' or '-'
end

-- The keys of which the record has been gone through. Of a key that thousands have held, it is read once, and not for each.
local cleared = {}

-- Removes the holders of a grant, and with them whoever else is gone from the same records, so many of those. Says how many
-- there were.
local function remove_step(member, name, room)
    local keys, alone, removed = {}, {}, 0
    for key in gmatch(sub(member, #name + 2), '[^\n]+') do
        if not cleared[key] then
            keys[#keys + 1] = key
        end
    end
    local held = '^[cus]' .. name .. '/%d+/%d+$'
    for at, value in ipairs(values_of(RECORDS, keys)) do
        local key = keys[at]
        if not value then
            -- Somebody else has removed it.
        elseif string.find(value, held) and not is_path(key) then
            alone[#alone + 1] = key
        else
            cleared[key] = true
            local before = parse(key, value)
            local after = without(before, function(entry)
                local ours = entry.want and (which == '' or entry.session == which)
                if not ours or standing(entry, meet) ~= 'gone' then
                    return false
                end
                if entry.session .. '/' .. entry.n ~= name and removed >= room then
                    cleared[key] = nil
                    return false
                end
                removed = removed + 1
                remove(BATCHES, batch_of(entry, key))
                return true
            end)
            if #after < #before then
                save(key, before, after)
            end
        end
    end
    remove(BATCHES, member)
    flush()
    many('HDEL', RECORDS, alone)
    return removed + #alone
end

-- So many bytes of batches are looked at, and so many batches are fetched: some have one key, some a thousand.
local budget, fetched = 1000000, 1
local removed = 0
local last = ''
while true do
    local batches = call('ZRANGEBYLEX', BATCHES, from, to, 'LIMIT', '0', fetched)
    for _, member in ipairs(batches) do
        if removed >= limit or budget <= 0 then
            tell_if_freed()
            return { removed, last, sessions }
        end
        budget = budget - #member - 100
        last = member
        local name, id, n = match(member, '^(([0-9a-f]+)/(%d+))\n')
        if id ~= before_it then
            sessions, before_it = sessions + 1, id
        end
        local session = id and #id == 32 and meet(id) or UNREADABLE
        if session.life == 'dead' or (session.life ~= 'unreadable' and is_over(session, n)) then
            removed = removed + remove_step(member, name, limit - removed)
        end
    end
    if #batches < fetched then
        tell_if_freed()
        return { removed, '', sessions }
    end
    from = '(' .. batches[#batches]
    if removed >= limit then
        tell_if_freed()
        return { removed, last, sessions }
    end
    fetched = math.min(fetched * 2, 128)
end
