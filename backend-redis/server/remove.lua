-- Removes the namespace with everything in it. Who has no right to UNLINK is told also where there is nothing.
local version = call('HGET', META, 'version')
if version and version ~= VERSION then
    return redis.error_reply('LKVERSION ' .. version)
end
return call('UNLINK', RECORDS, WRITES, READS, SESSIONS, INTENTS, BATCHES, META, DUE)
