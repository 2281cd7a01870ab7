-- For a program's own values, run by the program's own user: writes one, unless a later holder of the lock has.
-- KEYS: the value's, and the one that keeps the greatest token which has written it; of a cluster, both in one slot.
-- ARGV: the writer's token, the value -> 1 if it was written, 0 if a greater token was here before
local token, seen = ARGV[1], redis.call('GET', KEYS[2])
local function is_token(text)
    return string.find(text, '^[1-9]%d*$')
end
if not is_token(token) or seen and not is_token(seen) then
    return redis.error_reply('ERR not a token')
end
-- As numbers they would be rounded.
if seen and (#token < #seen or #token == #seen and token < seen) then
    return 0
end
redis.call('MSET', KEYS[1], ARGV[2], KEYS[2], token)
return 1
