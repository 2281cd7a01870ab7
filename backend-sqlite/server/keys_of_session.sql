-- Each key once: where the session has several grants on it, at the first of them.
SELECT n, key
FROM holders AS here
WHERE session = ?1
  AND (n, key) > (?2, ?3)
  AND NOT EXISTS (SELECT 1 FROM holders WHERE key = here.key AND session = here.session AND n < here.n)
ORDER BY n, key
LIMIT ?4
