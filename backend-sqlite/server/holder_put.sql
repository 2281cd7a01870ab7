-- The same grant sent again overwrites itself, and writes.
INSERT INTO holders (key, session, n, m, want, since_ms)
VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (key, session, n) DO UPDATE SET m = excluded.m, want = excluded.want, since_ms = excluded.since_ms
