-- What the other functions share. These run with the settings and the rights of the function that calls them.

-- Where a session is looked for by its id, its life is asked for in a way that fits no index: of a table that is taken
-- for an empty one, the index by lives is as good to a planner as the primary key, and it reads all that live.

-- Whether a statement after this one sees what was committed before it, and what it writes is kept.
CREATE OR REPLACE FUNCTION {ns}.ready() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'the server is a standby' USING ERRCODE = 'read_only_sql_transaction';
    END IF;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'the transaction is not READ COMMITTED' USING ERRCODE = 'LK001';
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    -- Nobody waits for a latch until its client has gone; connections of our own have a time that goes with the client's.
    IF current_setting('lock_timeout') = '0' THEN
        PERFORM set_config('lock_timeout', '4s', true);
    END IF;
END $$;

-- What may be lost in a crash without harm does not wait for the disk.
CREATE OR REPLACE FUNCTION {ns}.ready_without_waiting() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {ns}.ready(), set_config('synchronous_commit', 'off', true);
END $$;

-- The number of a key's latch. The empty text, which is no key, is the latch of those who wait.
CREATE OR REPLACE FUNCTION {ns}.latch(p_key text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT hashtextextended(p_key, hashtextextended('{name}', 0))
$$;

-- The timeline, which rises when another server takes over; 0 where the server does not tell it, as some that copy their
-- storage and not what is logged.
CREATE OR REPLACE FUNCTION {ns}.timeline() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint;
EXCEPTION WHEN object_not_in_prerequisite_state OR undefined_function OR feature_not_supported OR insufficient_privilege THEN
    RETURN 0;
END $$;

-- The name of the incarnation. Whatever is restored comes with a start of the server, or by another transaction than it
-- says, and so does a standby that takes over; a sequence that went back with it is raised first, above all that can have
-- been drawn: 1,024 for each millisecond of the clock, and some more where the end of it may be lost and the clock is
-- another one. No lock is waited for after this one's.
CREATE OR REPLACE FUNCTION {ns}.based() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    b record;
    now_on bigint;
    same boolean;
BEGIN
    SELECT x.name INTO b FROM {ns}.base x
    WHERE x.one AND x.started = pg_postmaster_start_time() AND x.written = x.xmin;
    IF FOUND THEN
        RETURN b.name;
    END IF;
    INSERT INTO {ns}.base (started, written, timeline, name) VALUES ('-infinity', '0', 0, 0) ON CONFLICT DO NOTHING;
    SELECT x.*, x.written = x.xmin AS here INTO b FROM {ns}.base x WHERE x.one FOR UPDATE;
    IF b.here AND b.started = pg_postmaster_start_time() THEN
        RETURN b.name;
    END IF;
    now_on := {ns}.timeline();
    same := b.here AND b.timeline = now_on;
    PERFORM setval('{ns}.token', greatest(
        (SELECT last_value FROM {ns}.token) + CASE WHEN same THEN 0 ELSE 1 << 26 END,
        (extract(epoch FROM clock_timestamp()) * 1000)::bigint << 10));
    UPDATE {ns}.base x
    SET started = pg_postmaster_start_time(), written = pg_current_xact_id()::xid, timeline = now_on,
        name = CASE WHEN same THEN x.name ELSE nextval('{ns}.token') END
    WHERE x.one RETURNING x.name INTO b;
    RETURN b.name;
END $$;

-- A greater token than every one before. Called when the latches are held and the tokens are based.
CREATE OR REPLACE FUNCTION {ns}.next_token() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT nextval('{ns}.token'::regclass)
$$;

CREATE OR REPLACE FUNCTION {ns}.known(p_want text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT p_want IN ('create', 'upsert', 'share', 'write', 'read')
$$;

-- Whether a row that is known counts, by its session: one that waits only while that lives. Of a holder's without a record it
-- must be established first.
CREATE OR REPLACE FUNCTION {ns}.counts(p_place bigint, p_n bigint, p_life text, p_over int8multirange) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_place IS NULL THEN p_life IS NULL OR (p_life <> 'dead' AND NOT p_over @> p_n)
                ELSE p_life = 'living' AND NOT p_over @> p_n END
$$;

-- A path's ancestors, the shortest one first.
CREATE OR REPLACE FUNCTION {ns}.above(p_key text) RETURNS text[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    parts text[] := string_to_array(p_key, '/');
BEGIN
    IF NOT starts_with(p_key, '/') THEN
        RETURN '{}';
    END IF;
    RETURN ARRAY(SELECT array_to_string(parts[1:part], '/') FROM generate_series(2, cardinality(parts) - 1) part);
END $$;

-- The number after an adoption number; the greatest has none.
CREATE OR REPLACE FUNCTION {ns}.after(p_number bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_number < 9223372036854775807 THEN p_number + 1 ELSE p_number END
$$;
