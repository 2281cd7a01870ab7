SELECT last
FROM token
WHERE one = 1
