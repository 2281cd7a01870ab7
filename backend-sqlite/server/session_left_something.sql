SELECT EXISTS (SELECT 1 FROM intents WHERE session = ?1) OR EXISTS (SELECT 1 FROM holders WHERE session = ?1)
