-- Who waits says so in a table, and only then anybody is told: a notification takes a lock of the whole server.
-- Whoever tells holds the latch of the table shared until its commit; whoever begins to wait, exclusive. So whatever
-- was not told to somebody is committed before its watch stands.

CREATE OR REPLACE FUNCTION {ns}.watch(p_id bigint, p_channel text, p_pid bigint, p_keys text[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER {settings} AS $$
BEGIN
    PERFORM ready_without_waiting();
    PERFORM pg_advisory_xact_lock(latch(''));
    INSERT INTO waiters (id, key, channel, pid)
    SELECT DISTINCT p_id, k, p_channel, p_pid::integer FROM unnest(p_keys) k;
END $$;

CREATE OR REPLACE FUNCTION {ns}.unwatch(p_ids bigint[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER {settings} AS $$
BEGIN
    PERFORM ready_without_waiting();
    DELETE FROM waiters w USING (
        SELECT x.id, x.key FROM waiters x WHERE x.id = ANY (p_ids) FOR UPDATE SKIP LOCKED
    ) gone WHERE w.id = gone.id AND w.key = gone.key;
END $$;

-- Tells these watches, and forgets them.
CREATE OR REPLACE FUNCTION {ns}.tell(p_ids bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    told record;
BEGIN
    FOR told IN
        WITH gone AS (
            DELETE FROM {ns}.waiters w USING (
                SELECT x.id, x.key FROM {ns}.waiters x WHERE x.id = ANY (p_ids) FOR UPDATE SKIP LOCKED
            ) met WHERE w.id = met.id AND w.key = met.key
            RETURNING w.channel, w.id
        )
        SELECT channel, string_agg(DISTINCT id::text, ',') AS ids FROM gone GROUP BY channel
    LOOP
        -- A notification has less than 8,000 bytes.
        PERFORM pg_notify(told.channel, CASE WHEN length(told.ids) < 7000 THEN told.ids ELSE '*' END);
    END LOOP;
END $$;

-- Tells everybody: somebody stopped counting.
CREATE OR REPLACE FUNCTION {ns}.wake_all() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared({ns}.latch(''));
    IF EXISTS (SELECT FROM {ns}.waiters) THEN
        PERFORM {ns}.tell(ARRAY(SELECT DISTINCT id FROM {ns}.waiters));
    END IF;
END $$;

-- Tells those who wait for one of these keys, for something above it or for something below it.
CREATE OR REPLACE FUNCTION {ns}.wake(p_keys text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared({ns}.latch(''));
    IF NOT EXISTS (SELECT FROM {ns}.waiters) THEN
        RETURN;
    END IF;
    IF cardinality(p_keys) > 16 THEN
        PERFORM {ns}.tell(ARRAY(SELECT DISTINCT id FROM {ns}.waiters));
        RETURN;
    END IF;
    PERFORM {ns}.tell(ARRAY(
        SELECT DISTINCT met.id FROM unnest(p_keys) k CROSS JOIN LATERAL (
            SELECT w.id FROM {ns}.waiters w WHERE w.key = k
            UNION ALL
            SELECT w.id FROM {ns}.waiters w
            WHERE starts_with(k, '/') AND w.key > k || '/' AND w.key < k || '0'
            UNION ALL
            SELECT w.id FROM {ns}.waiters w
            WHERE starts_with(k, '/') AND w.key = ANY (ARRAY(
                SELECT array_to_string((string_to_array(k, '/'))[1:part], '/')
                FROM generate_series(2, cardinality(string_to_array(k, '/')) - 1) part))
        ) met));
END $$;
