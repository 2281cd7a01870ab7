SELECT key, session, n, m, want, since_ms, place, passed
FROM holders
WHERE key = ?1 AND session = ?2 AND n = ?3
