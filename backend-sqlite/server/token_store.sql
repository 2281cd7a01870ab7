UPDATE holders
SET m = ?1
WHERE key = '' AND session = x'' AND n = 0
