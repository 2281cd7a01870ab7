-- A time of another boot is past.
SELECT id
FROM sessions
WHERE life = 'living' AND (expires_ms <= ?1 OR boot <> ?2)
