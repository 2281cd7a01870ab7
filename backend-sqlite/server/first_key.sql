SELECT key
FROM holders
WHERE key >= ?1
ORDER BY key
LIMIT 1
