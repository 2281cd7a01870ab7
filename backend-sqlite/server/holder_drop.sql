DELETE FROM holders
WHERE key = ?1 AND session = ?2 AND n = ?3
