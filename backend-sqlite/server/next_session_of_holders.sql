SELECT session
FROM holders
WHERE session > ?1
ORDER BY session
LIMIT 1
