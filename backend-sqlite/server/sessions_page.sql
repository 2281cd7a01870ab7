-- A session whose id is none cannot be named; whatever holds in its name is listed by key.
SELECT label, ttl_ms, boot, expires_ms, life, ended_ms, seq, over, adoption, adopter, settled, notes, id
FROM sessions
WHERE id > ?1 AND length(id) = 16
ORDER BY id
LIMIT ?2
