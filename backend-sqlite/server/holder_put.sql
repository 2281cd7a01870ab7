-- The same grant sent again overwrites itself, and writes. One that waits has a place.
INSERT INTO holders (key, session, n, m, want, since_ms, place, passed)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT (key, session, n) DO UPDATE
SET m = excluded.m, want = excluded.want, since_ms = excluded.since_ms, place = excluded.place, passed = excluded.passed
