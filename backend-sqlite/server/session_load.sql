SELECT label, ttl_ms, boot, expires_ms, life, ended_ms, seq, over, adoption, adopter, settled, notes
FROM sessions
WHERE id = ?1
