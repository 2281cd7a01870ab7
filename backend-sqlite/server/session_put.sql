UPDATE sessions
SET label = ?2, ttl_ms = ?3, boot = ?4, expires_ms = ?5, life = ?6, ended_ms = ?7, seq = ?8, over = ?9, adoption = ?10,
    adopter = ?11, settled = ?12
WHERE id = ?1
