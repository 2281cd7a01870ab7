SELECT id
FROM sessions
WHERE life = 'living'
