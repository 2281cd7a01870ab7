-- Of one of another boot, the wall clock says what is left: nothing, if that is more than its TTL.
SELECT id
FROM sessions
WHERE life = 'living'
  AND CASE
      WHEN boot = ?2 THEN expires_ms <= ?1
      ELSE ended_ms IS NULL OR ended_ms NOT BETWEEN ?3 + 1 AND ?3 + ttl_ms
  END
