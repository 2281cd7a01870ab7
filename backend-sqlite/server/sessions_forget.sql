DELETE FROM sessions
WHERE id IN (
    SELECT id
    FROM sessions
    WHERE life = 'dead'
      AND ended_ms < ?1
      AND NOT EXISTS (SELECT 1 FROM intents WHERE session = sessions.id)
      AND NOT EXISTS (SELECT 1 FROM holders WHERE session = sessions.id)
    ORDER BY ended_ms
    LIMIT ?2
)
