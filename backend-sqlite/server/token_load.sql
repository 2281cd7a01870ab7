SELECT m
FROM holders
WHERE key = '' AND session = x'' AND n = 0
