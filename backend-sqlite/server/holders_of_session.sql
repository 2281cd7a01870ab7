SELECT key, session, n, m, want, since_ms, place, passed
FROM holders
WHERE session = ?1 AND n BETWEEN ?2 AND ?3 AND (n, key) > (?4, ?5)
ORDER BY n, key
LIMIT ?6
