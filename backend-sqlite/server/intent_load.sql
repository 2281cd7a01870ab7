SELECT token, payload
FROM intents
WHERE session = ?1
