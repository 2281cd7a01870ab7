-- What is there, for people. Nothing is changed but by evict.

-- What the foreign rows of a key say.
CREATE OR REPLACE FUNCTION {ns}.version(p_key text) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT coalesce(md5(string_agg(h::text, ';' ORDER BY h.session, h.n)), '')
    FROM {ns}.holders h WHERE h.key = p_key AND NOT {ns}.known(h.want)
$$;

-- Some of those who hold these keys and count, in the order asked, and who holds something below them; behind the holders
-- those who wait, the first ones.
CREATE OR REPLACE FUNCTION {ns}.records(p_keys text[], p_below boolean)
RETURNS TABLE (
    r_place bigint, r_below boolean, r_session bytea, r_n bigint, r_m bigint, r_want text, r_since_ms bigint,
    r_line bigint, r_passed bigint, r_label text, r_life text, r_due boolean, r_kept_by text, r_key text, r_version text
) LANGUAGE plpgsql SECURITY DEFINER {settings} AS $$
BEGIN
    RETURN QUERY
        SELECT asked.place, met.below, met.session::bytea, met.n, met.m, met.want,
               (extract(epoch FROM met.since) * 1000)::bigint, met.place, met.passed, met.label, met.life, false, NULL,
               asked.key, version(asked.key)
        FROM unnest(p_keys) WITH ORDINALITY asked (key, place)
        CROSS JOIN LATERAL (
            (SELECT false AS below, h.*, s.label, s.life
             FROM (
                 (SELECT * FROM holders x WHERE x.key = asked.key AND (x.place IS NULL OR NOT known(x.want)) OFFSET 0)
                 UNION ALL
                 (SELECT * FROM holders x WHERE x.key = asked.key AND x.place IS NOT NULL AND known(x.want)
                  ORDER BY x.place OFFSET 0)
             ) h LEFT JOIN sessions s ON s.id = h.session
             WHERE (NOT known(h.want) OR (s.id IS NOT NULL AND counts(h.place, h.n, s.life, s.over)))
             LIMIT 17)
            UNION ALL
            (SELECT true, h.*, s.label, s.life
             FROM (
                 (SELECT * FROM holders x
                  WHERE x.key >= asked.key || '/' AND x.key < asked.key || '0' AND (x.place IS NULL OR NOT known(x.want))
                  OFFSET 0)
                 UNION ALL
                 (SELECT * FROM holders x
                  WHERE x.key >= asked.key || '/' AND x.key < asked.key || '0' AND x.place IS NOT NULL AND known(x.want)
                  ORDER BY x.place OFFSET 0)
             ) h LEFT JOIN sessions s ON s.id = h.session
             WHERE p_below
               AND (NOT known(h.want) OR (s.id IS NOT NULL AND counts(h.place, h.n, s.life, s.over)))
             LIMIT 64)
        ) met
        ORDER BY asked.place, met.place NULLS FIRST;
END $$;

-- The keys from one to another, the end excluded, that somebody holds or waits for.
CREATE OR REPLACE FUNCTION {ns}.keys(p_from text, p_after text, p_to text, p_limit bigint)
RETURNS TABLE (r_key text) LANGUAGE plpgsql SECURITY DEFINER {settings} AS $$
BEGIN
    RETURN QUERY
        SELECT DISTINCT h.key FROM holders h LEFT JOIN sessions s ON s.id = h.session
        WHERE h.key >= p_from AND h.key > p_after AND (p_to IS NULL OR h.key < p_to)
          AND (NOT known(h.want) OR (s.id IS NOT NULL AND counts(h.place, h.n, s.life, s.over)))
        ORDER BY h.key LIMIT p_limit;
END $$;

-- The keys that a session holds or waits for, each once: by the first grant that has it.
CREATE OR REPLACE FUNCTION {ns}.keys_of(p_id bytea, p_n bigint, p_after text, p_limit bigint)
RETURNS TABLE (r_n bigint, r_key text) LANGUAGE plpgsql SECURITY DEFINER {settings} AS $$
BEGIN
    RETURN QUERY
        SELECT h.n, h.key FROM holders h JOIN sessions s ON s.id = h.session
        WHERE h.session = p_id AND h.n >= p_n AND (h.n, h.key) > (p_n, p_after)
          AND (NOT known(h.want) OR counts(h.place, h.n, s.life, s.over))
          -- Said in this way, only the primary key fits; by the other index, each key would read all of the session's grants.
          AND NOT EXISTS (
              SELECT FROM holders o
              WHERE (o.key, o.session, o.n) >= (h.key, p_id, -9223372036854775808) AND (o.key, o.session, o.n) < (h.key, p_id, h.n)
                AND (NOT known(o.want) OR counts(o.place, o.n, s.life, s.over)))
        ORDER BY h.n, h.key LIMIT p_limit;
END $$;

CREATE OR REPLACE FUNCTION {ns}.list_sessions(p_after bytea, p_limit bigint)
RETURNS TABLE (
    r_id bytea, r_label text, r_life text, r_over text, r_adoption bigint, r_adopter bytea, r_notes text, r_ended_ms bigint
) LANGUAGE plpgsql SECURITY DEFINER {settings} AS $$
BEGIN
    RETURN QUERY
        SELECT s.id, s.label, s.life, s.over::text, s.adoption, s.adopter, s.notes,
               (extract(epoch FROM s.ended) * 1000)::bigint
        FROM sessions s WHERE s.id > p_after ORDER BY s.id LIMIT p_limit;
END $$;

-- These sessions, as far as they are remembered.
CREATE OR REPLACE FUNCTION {ns}.these_sessions(p_ids bytea[])
RETURNS TABLE (
    r_id bytea, r_label text, r_life text, r_over text, r_adoption bigint, r_adopter bytea, r_notes text, r_ended_ms bigint
) LANGUAGE plpgsql SECURITY DEFINER {settings} AS $$
BEGIN
    RETURN QUERY
        SELECT s.id, s.label, s.life, s.over::text, s.adoption, s.adopter, s.notes,
               (extract(epoch FROM s.ended) * 1000)::bigint
        FROM sessions s WHERE s.id = ANY (p_ids);
END $$;

-- What is left of leases, in milliseconds, of those sessions that live, each with its place among those asked for.
CREATE OR REPLACE FUNCTION {ns}.leases(p_ids bytea[]) RETURNS TABLE (r_place bigint, r_left_ms bigint)
LANGUAGE plpgsql SECURITY DEFINER {settings} AS $$
BEGIN
    RETURN QUERY
        SELECT asked.place, greatest(extract(epoch FROM s.expires - clock_timestamp()) * 1000, 0)::bigint
        FROM unnest(p_ids) WITH ORDINALITY asked (id, place)
        CROSS JOIN LATERAL (SELECT * FROM sessions y WHERE y.id = asked.id OFFSET 0) s
        WHERE (s.life = 'living') IS TRUE;
END $$;

CREATE OR REPLACE FUNCTION {ns}.evict(p_key text, p_version text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER {settings} AS $$
BEGIN
    PERFORM ready();
    PERFORM FROM holders h WHERE h.key = p_key AND NOT known(h.want) ORDER BY h.session, h.n FOR UPDATE;
    IF NOT FOUND OR version(p_key) <> p_version THEN
        RETURN false;
    END IF;
    DELETE FROM holders h WHERE h.key = p_key AND NOT known(h.want);
    PERFORM wake(ARRAY[p_key]);
    RETURN true;
END $$;

-- What the namespace and the server are like.
CREATE OR REPLACE FUNCTION {ns}.about()
RETURNS TABLE (r_version bigint, r_latches bigint, r_synchronous text, r_fsync boolean, r_standbys text, r_copies bigint)
LANGUAGE plpgsql SECURITY DEFINER {settings} AS $$
DECLARE
    synchronous text := current_setting('synchronous_commit');
BEGIN
    -- A server that cannot draw tokens is not used.
    PERFORM ready_without_waiting(), based(), next_token();
    RETURN QUERY
        SELECT m.version::bigint,
               current_setting('max_locks_per_transaction')::bigint * current_setting('max_connections')::bigint,
               synchronous, current_setting('fsync')::boolean,
               current_setting('synchronous_standby_names'),
               (SELECT count(*) FROM pg_stat_replication) + (SELECT count(*) FROM pg_replication_slots)
        FROM meta m WHERE m.one;
END $$;
