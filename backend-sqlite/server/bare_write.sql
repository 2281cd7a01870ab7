INSERT INTO bare (one, writes)
VALUES (1, 1)
ON CONFLICT (one) DO UPDATE SET writes = writes + 1
