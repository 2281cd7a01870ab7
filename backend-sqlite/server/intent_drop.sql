DELETE FROM intents
WHERE session = ?1
