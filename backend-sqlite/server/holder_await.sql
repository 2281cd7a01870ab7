UPDATE holders
SET awaited = 1
WHERE key = ?1 AND session = ?2 AND n = ?3 AND awaited = 0
