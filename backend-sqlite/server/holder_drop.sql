-- A row that cannot be understood is not ours to drop, whatever session it names.
DELETE FROM holders
WHERE key = ?1 AND session = ?2 AND n = ?3 AND want IN ('create', 'upsert', 'share', 'write', 'read')
RETURNING awaited
