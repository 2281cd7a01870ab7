-- Sessions. A death takes the row for update, so that it waits for whoever has confirmed a lock in a transaction that is
-- still open; a renewal does not, and leaves that lock alone.

-- The incarnation in which it was opened, 0 if nothing is lost with the server, or null if the id was used. Versions 1 and 2
-- have it under other names: a program of theirs that was connected before the namespace was made anew opens no session here.
CREATE OR REPLACE FUNCTION {ns}.begin_session(p_id bytea, p_label text, p_ttl_ms bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER {settings} AS $$
DECLARE
    incarnation bigint;
BEGIN
    PERFORM ready();
    incarnation := based();
    -- The order is that of the index by session: without it, a plan for an empty table reads the whole primary key.
    IF EXISTS (SELECT FROM intents WHERE session = p_id)
       OR (SELECT n FROM holders WHERE session = p_id ORDER BY n LIMIT 1) IS NOT NULL THEN
        RETURN NULL;
    END IF;
    INSERT INTO sessions (id, label, ttl_ms, expires, life, seq, over, adoption)
    VALUES (p_id, p_label, p_ttl_ms, clock_timestamp() + p_ttl_ms * interval '1 millisecond', 'living',
            -9223372036854775808, '{}', -9223372036854775808)
    ON CONFLICT (id) DO NOTHING;
    IF NOT FOUND THEN
        RETURN NULL;
    ELSIF current_setting('synchronous_standby_names') <> '' AND current_setting('synchronous_commit') <> 'local' THEN
        RETURN 0;
    END IF;
    RETURN incarnation;
END $$;

CREATE OR REPLACE FUNCTION {ns}.renew(
    p_id bytea, p_seq bigint, p_acknowledged bigint, p_over text, p_intent text, p_token bigint, p_payload bytea,
    p_incarnation bigint, p_granted text
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER {settings} AS $$
BEGIN
    RETURN renew_for(p_id, p_seq, p_acknowledged, p_over, p_intent, p_token, p_payload, p_incarnation, p_granted, NULL);
END $$;

-- The same, which also changes the TTL, unless that is null.
CREATE OR REPLACE FUNCTION {ns}.renew_for(
    p_id bytea, p_seq bigint, p_acknowledged bigint, p_over text, p_intent text, p_token bigint, p_payload bytea,
    p_incarnation bigint, p_granted text, p_ttl_ms bigint
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER {settings} AS $$
DECLARE
    incarnation bigint;
    before int8multirange;
    retired int8multirange := p_over::int8multirange;
    noted text;
    answer text;
BEGIN
    PERFORM ready();
    incarnation := based();
    IF p_incarnation NOT IN (0, incarnation) THEN
        RETURN 'moved ' || incarnation;
    ELSIF EXISTS (
        SELECT FROM unnest(p_granted::int8multirange) grants
        CROSS JOIN LATERAL generate_series(lower(grants), coalesce(upper(grants) - 1, 9223372036854775807)) granted (n)
        WHERE (SELECT h.n FROM holders h WHERE h.session = p_id AND h.n = granted.n AND h.place IS NULL LIMIT 1) IS NULL
    ) THEN
        RETURN CASE WHEN EXISTS (
            SELECT FROM sessions WHERE id = p_id AND (life = 'living') IS TRUE
        ) THEN 'forgotten' ELSE 'dead' END;
    END IF;
    SELECT over INTO before FROM sessions WHERE id = p_id;
    -- Whoever confirms a lock in a transaction that is still open has locked the session; then what it has confirmed is retired
    -- by a later renewal.
    PERFORM FROM sessions WHERE id = p_id FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        retired := retired - coalesce((
            SELECT range_agg(int8range(h.n, h.n, '[]'))
            FROM unnest(retired - before) gone CROSS JOIN LATERAL (
                SELECT x.key, x.n FROM holders x
                WHERE x.session = p_id AND x.place IS NULL AND x.n >= coalesce(lower(gone), -9223372036854775808)
                  AND x.n <= coalesce(upper(gone) - 1, 9223372036854775807)
            ) h
            WHERE NOT EXISTS (
                SELECT FROM holders x WHERE x.key = h.key AND x.session = p_id AND x.n = h.n FOR UPDATE SKIP LOCKED)), '{}');
    END IF;
    -- What an earlier renewal has retired meanwhile stays so, whatever held its rows when they were looked at.
    UPDATE sessions
    SET seq = p_seq, over = sessions.over + retired, ttl_ms = coalesce(p_ttl_ms, ttl_ms),
        expires = clock_timestamp() + coalesce(p_ttl_ms, ttl_ms) * interval '1 millisecond'
    WHERE id = p_id AND (life = 'living') IS TRUE AND seq < p_seq AND seq >= p_acknowledged
    RETURNING notes INTO noted;
    IF NOT FOUND THEN
        SELECT CASE WHEN life <> 'living' THEN 'dead' WHEN seq < p_acknowledged THEN 'forgotten' ELSE 'overtaken' END
        INTO answer FROM sessions WHERE id = p_id;
        RETURN coalesce(answer, 'dead');
    END IF;
    IF p_intent = 'put' THEN
        INSERT INTO intents (session, token, payload) VALUES (p_id, p_token, p_payload)
        ON CONFLICT (session) DO UPDATE SET token = excluded.token, payload = excluded.payload;
    ELSIF p_intent = 'drop' THEN
        DELETE FROM intents WHERE session = p_id;
    END IF;
    -- Whoever has released something has woken those who waited for it. It is still there where that is not committed.
    IF EXISTS (
        SELECT FROM unnest(retired - before) gone
        CROSS JOIN LATERAL (
            SELECT FROM holders x
            WHERE x.session = p_id AND x.n >= coalesce(lower(gone), -9223372036854775808)
              AND x.n <= coalesce(upper(gone) - 1, 9223372036854775807)
            LIMIT 1
        ) left_behind
    ) THEN
        PERFORM wake_all();
    END IF;
    RETURN 'living' || noted;
END $$;

-- Ends sessions, one after the other in one order, and says what each is now.
CREATE OR REPLACE FUNCTION {ns}.end_sessions(p_ids bytea[], p_how text)
RETURNS TABLE (
    r_id bytea, r_label text, r_life text, r_over text, r_adoption bigint, r_adopter bytea, r_notes text, r_ended_ms bigint
) LANGUAGE plpgsql SECURITY DEFINER {settings} AS $$
DECLARE
    p_id bytea;
    s sessions;
    freed boolean := false;
BEGIN
    PERFORM ready();
    IF current_setting('lock_timeout')::interval > '1s' THEN
        PERFORM set_config('lock_timeout', '1s', true);
    END IF;
    FOR p_id IN SELECT DISTINCT i FROM unnest(p_ids) i ORDER BY i LOOP
        SELECT * INTO s FROM sessions WHERE id = p_id;
        IF NOT FOUND THEN
            INSERT INTO sessions (id, label, ttl_ms, expires, life, ended, seq, over, adoption)
            VALUES (p_id, '', 0, clock_timestamp(), 'dead', clock_timestamp(),
                    -9223372036854775808, '{}', -9223372036854775808)
            ON CONFLICT (id) DO NOTHING;
            freed := freed OR FOUND;
            SELECT * INTO s FROM sessions WHERE id = p_id;
        END IF;
        IF s.life <> 'living' THEN
            -- Who is told of a death has written, so that the answer waits for the disk and for the standbys.
            PERFORM FROM sessions WHERE id = p_id FOR KEY SHARE;
        END IF;
        IF p_how = 'discard' THEN
            CONTINUE WHEN s.life <> 'abandoned';
        ELSE
            CONTINUE WHEN s.life <> 'living' OR (p_how = 'due' AND s.expires > clock_timestamp());
        END IF;
        BEGIN
            SELECT * INTO s FROM sessions WHERE id = p_id FOR UPDATE;
        EXCEPTION WHEN lock_not_available THEN
            -- A transaction that has confirmed a lock of the session is still open: it lives as long.
            CONTINUE WHEN p_how = 'due';
            RAISE;
        END;
        IF p_how = 'discard' THEN
            CONTINUE WHEN s.life <> 'abandoned';
            DELETE FROM intents WHERE session = p_id;
            UPDATE sessions
            SET life = 'dead', ended = clock_timestamp(), adoption = after(adoption), adopter = NULL
            WHERE id = p_id;
        ELSE
            CONTINUE WHEN s.life <> 'living' OR (p_how = 'due' AND s.expires > clock_timestamp());
            UPDATE sessions
            SET ended = clock_timestamp(),
                life = CASE WHEN EXISTS (SELECT FROM intents WHERE session = p_id) THEN 'abandoned' ELSE 'dead' END
            WHERE id = p_id;
        END IF;
        IF p_how = 'revoke' THEN
            PERFORM tell_owner(p_id);
        END IF;
        freed := true;
    END LOOP;
    IF freed THEN
        PERFORM wake_all();
    END IF;
    RETURN QUERY
        SELECT x.id, x.label, x.life, x.over::text, x.adoption, x.adopter, x.notes,
               (extract(epoch FROM x.ended) * 1000)::bigint
        -- One look at the key for each, however many sessions there are.
        FROM unnest(p_ids) WITH ORDINALITY asked (id, place)
        CROSS JOIN LATERAL (SELECT * FROM sessions y WHERE y.id = asked.id OFFSET 0) x
        ORDER BY asked.place;
END $$;

-- Adoptions. Each names the incarnation that it is meant for, 0 for any: in another one the number may be another adoption's.
-- Programs live that call the functions before, which do not: their names stay free.

-- No row if it is not adopted; one without a number where the incarnation is another one.
CREATE OR REPLACE FUNCTION {ns}.adopt_within(p_id bytea, p_seen bigint, p_adopter bytea, p_incarnation bigint)
RETURNS TABLE (r_number bigint, r_token bigint, r_left_token bigint, r_payload bytea)
LANGUAGE plpgsql SECURITY DEFINER {settings} AS $$
DECLARE
    here bigint;
    s sessions;
BEGIN
    PERFORM ready();
    here := based();
    IF p_incarnation NOT IN (0, here) THEN
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT * INTO s FROM sessions WHERE id = p_id FOR UPDATE;
    IF NOT FOUND OR s.life <> 'abandoned' OR after(p_seen) = p_seen THEN
        RETURN;
    ELSIF s.adoption = p_seen THEN
        UPDATE sessions SET adoption = after(p_seen), adopter = p_adopter WHERE id = p_id;
    ELSIF s.adoption <> after(p_seen) OR s.adopter IS DISTINCT FROM p_adopter THEN
        RETURN;
    END IF;
    RETURN QUERY
        SELECT after(p_seen), next_token(), i.token, i.payload FROM intents i WHERE i.session = p_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the intent of an abandoned session is gone' USING ERRCODE = 'LK002';
    END IF;
END $$;

-- Also of a session that is not abandoned yet: an adoption that is under way may reach it later. Null where the incarnation
-- is another one.
CREATE OR REPLACE FUNCTION {ns}.give_up_within(p_id bytea, p_seen bigint, p_adopter bytea, p_incarnation bigint)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER {settings} AS $$
BEGIN
    PERFORM ready();
    IF p_incarnation <> 0 AND p_incarnation <> based() THEN
        RETURN NULL;
    END IF;
    UPDATE sessions SET adoption = after(adoption), adopter = NULL
    WHERE id = p_id
      AND (adoption = p_seen OR (adoption = after(p_seen) AND adopter IS NOT DISTINCT FROM p_adopter));
    RETURN true;
END $$;

-- Whether it is settled; null where the incarnation is another one.
CREATE OR REPLACE FUNCTION {ns}.settle_within(p_id bytea, p_adoption bigint, p_adopter bytea, p_incarnation bigint)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER {settings} AS $$
DECLARE
    s sessions;
BEGIN
    PERFORM ready();
    IF p_incarnation <> 0 AND p_incarnation <> based() THEN
        RETURN NULL;
    END IF;
    SELECT * INTO s FROM sessions WHERE id = p_id FOR UPDATE;
    IF NOT FOUND OR s.life = 'living' THEN
        RETURN false;
    ELSIF s.life = 'dead' THEN
        RETURN s.settled IS NOT DISTINCT FROM p_adoption AND coalesce(s.adopter, p_adopter) = p_adopter;
    ELSIF s.adoption <> p_adoption OR s.adopter IS DISTINCT FROM p_adopter THEN
        RETURN false;
    END IF;
    DELETE FROM intents WHERE session = p_id;
    UPDATE sessions SET life = 'dead', ended = clock_timestamp(), settled = p_adoption WHERE id = p_id;
    PERFORM wake_all();
    RETURN true;
END $$;

-- Adds a note, of which the oldest go. Whether there is a session.
CREATE OR REPLACE FUNCTION {ns}.note(p_id bytea, p_note text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER {settings} AS $$
DECLARE
    noted text;
BEGIN
    PERFORM ready();
    SELECT ltrim(notes || ' ' || p_note) INTO noted FROM sessions WHERE id = p_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    WHILE length(noted) > 4096 LOOP
        noted := substr(noted, strpos(noted, ' ') + 1);
    END LOOP;
    UPDATE sessions SET notes = noted WHERE id = p_id;
    PERFORM tell_owner(p_id);
    RETURN true;
END $$;
