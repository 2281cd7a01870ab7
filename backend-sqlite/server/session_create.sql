-- An id is used once: neither a record nor anything that its session left behind may be there.
INSERT INTO sessions (id, label, ttl_ms, boot, expires_ms, life, ended_ms, seq, over, adoption, adopter, settled, notes)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13
WHERE NOT EXISTS (SELECT 1 FROM intents WHERE session = ?1)
  AND NOT EXISTS (SELECT 1 FROM holders WHERE session = ?1)
ON CONFLICT (id) DO NOTHING
