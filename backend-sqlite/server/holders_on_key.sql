-- Those after the session ?2 and the number ?3. ?4 is a want that is certainly not in the way, or null;
-- without a session id the row is no holder of that want, and in the way.
SELECT key, session, n, m, want, since_ms, place, passed
FROM holders
WHERE key = ?1 AND (session, n) > (?2, ?3) AND (want IS NOT ?4 OR length(session) <> 16)
ORDER BY session, n
LIMIT ?5
