-- Makes the namespace where there is none. Besides, every command of the other scripts is called once, and changes
-- nothing: who lacks the right to one is told now, and not in the middle of something.
if call('HGET', META, 'version') then
    local version = call('HGET', META, 'version')
    if version ~= VERSION then
        return redis.error_reply('LKVERSION ' .. version)
    end
end
redis.pcall('INFO', 'replication')
call('HMGET', RECORDS, '')
call('HSCAN', RECORDS, '0', 'COUNT', '1')
call('HEXISTS', INTENTS, '')
call('ZRANGEBYLEX', BATCHES, '-', '-')
call('ZRANGEBYSCORE', DUE, '0', '0')
call('ZREVRANGEBYLEX', BATCHES, '-', '-')
-- First what is taken though there is no memory left, and the rest with it: an operator's program starts then, too.
for _, hash in ipairs({ RECORDS, SESSIONS, INTENTS }) do
    call('HDEL', hash, '')
end
for _, set in ipairs({ WRITES, READS, BATCHES, DUE }) do
    call('ZADD', set, 'XX', '0', '')
    call('ZREM', set, '')
end
call('SPUBLISH', WAKE, '')
if call('HEXISTS', META, 'version') == 0 then
    local drawn, wrong = next_token()
    if not drawn then
        return corrupt(wrong)
    end
    keep_token(drawn)
end
return call('HGET', META, 'created')
