-- Those after the row (?1, ?2, ?3): from 'path/' to 'path0'. ?4 is a want that is certainly not in the way, or null;
-- without a session id the row is no holder of that want, and in the way.
SELECT key, session, n, m, want, since_ms, place, passed
FROM holders
WHERE (key, session, n) > (?1, ?2, ?3) AND key < ?5 AND (want IS NOT ?4 OR length(session) <> 16)
ORDER BY key, session, n
LIMIT ?6
