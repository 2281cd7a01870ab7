INSERT INTO sessions (id, label, ttl_ms, boot, expires_ms, life, ended_ms, seq, over, adoption, adopter, settled, notes)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
ON CONFLICT (id) DO UPDATE
SET label = excluded.label, ttl_ms = excluded.ttl_ms, boot = excluded.boot, expires_ms = excluded.expires_ms,
    life = excluded.life, ended_ms = excluded.ended_ms, seq = excluded.seq, over = excluded.over,
    adoption = excluded.adoption, adopter = excluded.adopter, settled = excluded.settled, notes = excluded.notes
