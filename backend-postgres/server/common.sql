-- What the other functions share. These run with the settings and the rights of the function that calls them.

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

-- The timeline: it rises when another server takes over.
CREATE OR REPLACE FUNCTION {ns}.incarnation() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint
$$;

-- A greater token than every one before. Called when the latches are held.
CREATE OR REPLACE FUNCTION {ns}.next_token() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    -- Where another server takes over, the sequence may go back.
    SELECT ({ns}.incarnation() << 40) + nextval('{ns}.token'::regclass)
$$;

CREATE OR REPLACE FUNCTION {ns}.known(p_want text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT p_want IN ('create', 'upsert', 'share', 'write', 'read')
$$;

-- The number after an adoption number; the greatest has none.
CREATE OR REPLACE FUNCTION {ns}.after(p_number bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_number < 9223372036854775807 THEN p_number + 1 ELSE p_number END
$$;
