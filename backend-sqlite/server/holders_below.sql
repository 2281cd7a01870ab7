-- From 'path/' to 'path0'. ?3 is a want that is certainly not in the way, or null;
-- without a session id the row is no holder of that want, and in the way.
SELECT key, session, n, m, want, since_ms
FROM holders
WHERE key >= ?1 AND key < ?2 AND (want IS NOT ?3 OR length(session) <> 16)
