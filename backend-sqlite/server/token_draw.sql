UPDATE token
SET last = max(last + 1, ?1)
WHERE one = 1
RETURNING last
