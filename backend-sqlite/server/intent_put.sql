INSERT INTO intents (session, token, payload)
VALUES (?1, ?2, ?3)
ON CONFLICT (session) DO UPDATE SET token = excluded.token, payload = excluded.payload
