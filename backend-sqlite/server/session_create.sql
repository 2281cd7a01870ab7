INSERT INTO sessions (id, label, ttl_ms, boot, expires_ms, life, ended_ms, seq, over, adoption, adopter, settled)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
ON CONFLICT (id) DO NOTHING
