-- A process says in a table of which keys it is told, and only then anybody is told: a notification takes a lock of the
-- whole server. Whoever tells holds the latch of the table shared until its commit; whoever asks to be told, exclusive. So
-- whatever was not told to somebody is committed before its watch stands.

CREATE OR REPLACE FUNCTION {ns}.watch(p_ids bigint[], p_channel text, p_pid bigint, p_keys text[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER {settings} AS $$
BEGIN
    PERFORM ready_without_waiting();
    PERFORM pg_advisory_xact_lock(latch(''));
    INSERT INTO waiters (id, key, channel, pid)
    SELECT asked.id, asked.key, p_channel, p_pid::integer FROM unnest(p_ids, p_keys) asked (id, key)
    ON CONFLICT (id) DO NOTHING;
END $$;

CREATE OR REPLACE FUNCTION {ns}.unwatch(p_ids bigint[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER {settings} AS $$
BEGIN
    PERFORM ready_without_waiting();
    DELETE FROM waiters w USING (
        SELECT x.id FROM waiters x WHERE x.id = ANY (p_ids) FOR UPDATE SKIP LOCKED
    ) gone WHERE w.id = gone.id;
END $$;

-- Tells the owner of a session that it has news. Every process listens to this channel, for this is rare.
CREATE OR REPLACE FUNCTION {ns}.tell_owner(p_session bytea) RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify('lockkeeper:{name}', encode(p_session, 'hex'))
$$;

-- Tells everybody: somebody stopped counting.
CREATE OR REPLACE FUNCTION {ns}.wake_all() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    p_channel text := '';
BEGIN
    PERFORM pg_advisory_xact_lock_shared({ns}.latch(''));
    LOOP
        SELECT channel INTO p_channel FROM {ns}.waiters WHERE channel > p_channel ORDER BY channel LIMIT 1;
        EXIT WHEN NOT FOUND;
        PERFORM pg_notify(p_channel, '');
    END LOOP;
END $$;

-- Tells those who wait for one of these keys, for something above it or for something below it.
CREATE OR REPLACE FUNCTION {ns}.wake(p_keys text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF cardinality(p_keys) > 16 THEN
        PERFORM {ns}.wake_all();
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock_shared({ns}.latch(''));
    IF NOT EXISTS (SELECT FROM {ns}.waiters) THEN
        RETURN;
    END IF;
    PERFORM pg_notify(met.channel, met.id || ' ' || met.key)
    FROM unnest(p_keys) k CROSS JOIN LATERAL (
        SELECT w.* FROM {ns}.waiters w WHERE w.key = k
        UNION ALL
        SELECT w.* FROM {ns}.waiters w
        WHERE starts_with(k, '/') AND w.key > k || '/' AND w.key < k || '0'
        UNION ALL
        SELECT w.* FROM {ns}.waiters w
        WHERE w.key = ANY ({ns}.above(k))
    ) met;
END $$;
