SELECT label, ttl_ms, boot, expires_ms, life, ended_ms, seq, over, adoption, adopter, settled, id
FROM sessions
WHERE id > ?1
ORDER BY id
LIMIT ?2
