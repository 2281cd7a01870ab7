UPDATE token
SET last = ?1
WHERE one = 1
