-- cursor, count -> cursor, ids and records
return call('HSCAN', SESSIONS, ARGV[1], 'COUNT', ARGV[2])
