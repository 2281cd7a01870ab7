-- Claims. What is asked of a key is the want of a claim on it ('create', 'upsert', 'share', 'write', 'read'), or, of an
-- ancestor of a path, 'IX' or 'IS'. Whoever decides about a key holds its latch until the commit, exclusive or, where
-- others may be granted the same, shared; all latches are taken in one order, before anything is read.

-- Who waits for a key stands there, too, in a row with a place: it refuses whoever came later, and holds nothing. It is
-- written under the same latches as a holder.

-- Who is in the way, some for each key in the order asked, of holders and, behind them, of those who wait, the first ones; of
-- a session that is due or has no record it must be established first. Nobody asks when it is only watched. Of those who wait
-- they are in the way whose place is before the asker's, which is null if it has none; and none that it passes. If p_of is a
-- session, only that one's are asked for.
-- Holders are found by themselves, behind an OFFSET 0: joined at once with their sessions, a planner that takes the table
-- for empty reads all of it in the order of sessions, for each key.
CREATE OR REPLACE FUNCTION {ns}.in_the_way(
    p_session bytea, p_n bigint, p_m bigint, p_keys text[], p_asks text[], p_limits bigint[], p_now timestamptz,
    p_place bigint, p_passes bigint[], p_of bytea
) RETURNS TABLE (
    r_place bigint, r_below boolean, r_key text, r_session bytea, r_n bigint, r_m bigint, r_want text, r_since_ms bigint,
    r_line bigint, r_passed bigint, r_label text, r_life text, r_due boolean
) LANGUAGE sql STABLE AS $$
    SELECT asked.place, met.below, met.key, met.session, met.n, met.m, met.want,
           (extract(epoch FROM met.since) * 1000)::bigint, CASE WHEN {ns}.known(met.want) THEN met.place END, met.passed,
           met.label, met.life, met.due
    FROM unnest(p_keys, p_asks, p_limits) WITH ORDINALITY asked (key, ask, lim, place)
    CROSS JOIN LATERAL (
        SELECT asked.lim IS NOT NULL AND asked.lim <= (
            SELECT count(*) FROM (
                SELECT FROM (SELECT * FROM {ns}.holders x WHERE x.key = asked.key OFFSET 0) h
                LEFT JOIN {ns}.sessions s ON s.id = h.session
                WHERE h.want = 'share'
                  AND (h.session = p_session AND h.n = p_n) IS NOT TRUE
                  AND (h.place < p_place AND h.place <> ALL (p_passes)) IS NOT FALSE
                  AND {ns}.counts(h.place, h.n, s.life, s.over)
                LIMIT asked.lim
            ) shares
        ) AS reached OFFSET 0
    ) limits
    CROSS JOIN LATERAL (
        (SELECT false AS below, h.*, s.label, s.life,
                {ns}.known(h.want) AND (s.id IS NULL OR (s.life = 'living' AND s.expires <= p_now)) AS due
         FROM (
             (SELECT * FROM {ns}.holders x WHERE x.key = asked.key AND (x.place IS NULL OR NOT {ns}.known(x.want)) OFFSET 0)
             UNION ALL
             (SELECT * FROM {ns}.holders x
              WHERE x.key = asked.key AND x.place < coalesce(p_place, 9223372036854775807) AND {ns}.known(x.want)
                AND x.place <> ALL (p_passes)
              ORDER BY x.place OFFSET 0)
         ) h LEFT JOIN {ns}.sessions s ON s.id = h.session
         WHERE (asked.ask IN ('create', 'upsert', 'write', 'IX')
                OR h.want NOT IN ('read', 'share')
                OR (h.want = 'share' AND limits.reached))
           AND (p_of IS NULL OR h.session = p_of)
           AND (NOT {ns}.known(h.want)
                OR ((h.session = p_session AND h.n = p_n) IS NOT TRUE
                    AND (asked.ask NOT IN ('create', 'share') AND h.session = p_session AND h.m = p_m) IS NOT TRUE
                    AND {ns}.counts(h.place, h.n, s.life, s.over)))
         LIMIT 64)
        UNION ALL
        -- Permits that are due may stand behind all of these, and who waits for one; whoever ends one asks again.
        (SELECT false, h.*, s.label, s.life, true
         FROM (SELECT * FROM {ns}.holders x WHERE x.key = asked.key
                 AND (x.place IS NULL
                      OR (x.place < coalesce(p_place, 9223372036854775807) AND x.place <> ALL (p_passes))) OFFSET 0) h
         LEFT JOIN {ns}.sessions s ON s.id = h.session
         WHERE limits.reached AND asked.lim > 64 AND h.want = 'share' AND (p_of IS NULL OR h.session = p_of)
           AND (h.session = p_session AND h.n = p_n) IS NOT TRUE
           AND (s.id IS NULL OR (s.life = 'living' AND s.expires <= p_now))
           AND {ns}.counts(h.place, h.n, s.life, s.over)
         LIMIT 1)
        UNION ALL
        -- '0' is the byte after '/': this is everything below and nothing else.
        (SELECT true, h.*, s.label, s.life,
                {ns}.known(h.want) AND (s.id IS NULL OR (s.life = 'living' AND s.expires <= p_now))
         FROM (
             (SELECT * FROM {ns}.holders x
              WHERE x.key >= asked.key || '/' AND x.key < asked.key || '0' AND (x.place IS NULL OR NOT {ns}.known(x.want))
              OFFSET 0)
             UNION ALL
             (SELECT * FROM {ns}.holders x
              WHERE x.key >= asked.key || '/' AND x.key < asked.key || '0'
                AND x.place < coalesce(p_place, 9223372036854775807) AND {ns}.known(x.want) AND x.place <> ALL (p_passes)
              ORDER BY x.place OFFSET 0)
         ) h LEFT JOIN {ns}.sessions s ON s.id = h.session
         WHERE asked.ask IN ('write', 'read')
           AND (asked.ask = 'write' OR h.want <> 'read')
           AND (p_of IS NULL OR h.session = p_of)
           AND (NOT {ns}.known(h.want)
                OR ((h.session = p_session AND (h.n = p_n OR h.m = p_m)) IS NOT TRUE
                    AND {ns}.counts(h.place, h.n, s.life, s.over)))
         LIMIT 64)
    ) met
$$;

CREATE OR REPLACE FUNCTION {ns}.watched(p_keys text[], p_asks text[], p_limits bigint[])
RETURNS TABLE (
    r_place bigint, r_below boolean, r_key text, r_session bytea, r_n bigint, r_m bigint, r_want text, r_since_ms bigint,
    r_line bigint, r_passed bigint, r_label text, r_life text, r_due boolean, r_kept_by text
) LANGUAGE plpgsql SECURITY DEFINER {settings} AS $$
DECLARE
    at timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
        SELECT way.*, NULL FROM in_the_way(NULL, NULL, NULL, p_keys, p_asks, p_limits, at, NULL, '{}', NULL) way
        ORDER BY way.r_place LIMIT 1000;
END $$;

-- Whether the grant holds all of these keys as it asks for them.
CREATE OR REPLACE FUNCTION {ns}.stands(p_session bytea, p_n bigint, p_keys text[], p_asks text[]) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN bool_and(EXISTS (
        SELECT FROM {ns}.holders h
        WHERE (h.key, h.session, h.n) >= (asked.key, p_session, p_n)
          AND (h.key, h.session, h.n) <= (asked.key, p_session, p_n) AND h.want = asked.ask AND h.place IS NULL
    )) FROM unnest(p_keys, p_asks) asked (key, ask) WHERE asked.ask NOT IN ('IX', 'IS');
END $$;

-- Who keeps somebody that waits from what it waits for: holders, and those who came before. If p_of is a session, its holders.
CREATE OR REPLACE FUNCTION {ns}.keepers(
    p_session bytea, p_n bigint, p_m bigint, p_key text, p_want text, p_limit bigint, p_place bigint, p_now timestamptz,
    p_of bytea
) RETURNS TABLE (r_key text, r_session bytea, r_n bigint, r_line bigint, r_due boolean) LANGUAGE plpgsql STABLE AS $$
DECLARE
    keys text[] := {ns}.above(p_key) || p_key;
    higher int[] := ARRAY[cardinality(keys) - 1];
    asks text[] := array_fill(CASE p_want WHEN 'write' THEN 'IX' ELSE 'IS' END, higher)
        -- Its owner is in nobody's way here: who holds the key and creates it once more is told so when it asks.
        || CASE p_want WHEN 'create' THEN 'upsert' ELSE p_want END;
    -- A share has the limit of who asks, who wants one too: it is that of all.
    limits bigint[] := array_fill(NULL::bigint, higher) || CASE p_want WHEN 'share' THEN p_limit END;
BEGIN
    RETURN QUERY
    SELECT x.r_key, x.r_session, x.r_n, x.r_line, x.r_due
    FROM {ns}.in_the_way(p_session, p_n, p_m, keys, asks, limits, p_now, p_place, '{}', p_of) x
    WHERE p_of IS NULL OR x.r_line IS NULL;
END $$;

-- Whether somebody keeps one that waits from what it waits for: empty if nobody does; null if somebody does; else only sessions
-- do that are due, and these it is, in hex.
CREATE OR REPLACE FUNCTION {ns}.kept_by(
    p_session bytea, p_n bigint, p_m bigint, p_key text, p_want text, p_limit bigint, p_place bigint, p_now timestamptz
) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    way record;
    due text[] := '{}';
BEGIN
    FOR way IN SELECT * FROM {ns}.keepers(p_session, p_n, p_m, p_key, p_want, p_limit, p_place, p_now, NULL) LOOP
        IF NOT way.r_due THEN
            RETURN NULL;
        END IF;
        due := due || encode(way.r_session, 'hex');
    END LOOP;
    RETURN array_to_string(due, ' ');
END $$;

-- Whether a holder of that session keeps one that waits from what it waits for, or keeps from it whoever that one waits for in
-- turn. Each of them is followed once.
CREATE OR REPLACE FUNCTION {ns}.is_kept_by(
    p_key text, p_place bigint, p_limit bigint, p_now timestamptz, p_by bytea
) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
DECLARE
    line {ns}.holders[] := ARRAY(SELECT h FROM {ns}.holders h WHERE h.key = p_key AND h.place = p_place);
    one {ns}.holders;
    at int := 1;
BEGIN
    WHILE at <= cardinality(line) LOOP
        one := line[at];
        IF EXISTS (
            SELECT FROM {ns}.keepers(one.session, one.n, one.m, one.key, one.want, p_limit, one.place, p_now, p_by)
        ) THEN
            RETURN true;
        END IF;
        line := line || ARRAY(
            SELECT h FROM {ns}.keepers(one.session, one.n, one.m, one.key, one.want, p_limit, one.place, p_now, NULL) x
            JOIN {ns}.holders h ON h.key = x.r_key AND h.session = x.r_session AND h.n = x.r_n
            WHERE x.r_line IS NOT NULL AND NOT EXISTS (SELECT FROM unnest(line) met WHERE met.place = h.place));
        at := at + 1;
    END LOOP;
    RETURN false;
END $$;

-- Goes past those who wait in the way, where they are named as they are now. Who could go and does not, is removed. Who is
-- kept by a holder of the session that asks, also in turn, is passed. Says where somebody was removed, and who is passed: its
-- key and its place.
CREATE OR REPLACE FUNCTION {ns}.go_past(
    p_session bytea, p_n bigint, p_m bigint, p_keys text[], p_asks text[], p_limits bigint[], p_now timestamptz,
    p_place bigint, p_past text[], OUT freed text[], OUT passes_at text[], OUT passes bigint[]
) LANGUAGE plpgsql AS $$
DECLARE
    -- Who wants no share does not know how many there may be, and takes each of them for the last.
    lim bigint := CASE p_asks[cardinality(p_asks)] WHEN 'share' THEN p_limits[cardinality(p_limits)] ELSE 1 END;
    way record;
    seen text;
    stops bigint[] := '{}';
BEGIN
    freed := '{}';
    passes_at := '{}';
    passes := '{}';
    FOR way IN
        SELECT * FROM {ns}.in_the_way(p_session, p_n, p_m, p_keys, p_asks, p_limits, p_now, p_place, '{}', NULL) x
        WHERE x.r_line IS NOT NULL
    LOOP
        seen := encode(way.r_session, 'hex') || ' ' || way.r_n || ' ' || way.r_line || ' ' || way.r_passed;
        CONTINUE WHEN NOT p_past && ARRAY[seen || ' true', seen || ' false'];
        IF {ns}.kept_by(way.r_session, way.r_n, way.r_m, way.r_key, way.r_want, lim, way.r_line, p_now) = '' THEN
            IF seen || ' true' = ANY (p_past) THEN
                freed := freed || way.r_key;
                stops := stops || way.r_line;
            END IF;
        ELSIF seen || ' false' = ANY (p_past) AND {ns}.is_kept_by(way.r_key, way.r_line, lim, p_now, p_session) THEN
            passes_at := passes_at || way.r_key;
            passes := passes || way.r_line;
        END IF;
    END LOOP;
    IF stops <> '{}' THEN
        DELETE FROM {ns}.holders h USING unnest(freed, stops) stop (key, place)
        WHERE h.key = stop.key AND h.place = stop.place;
    END IF;
END $$;

-- Whether one more may stand in line. Where it is full, those are removed that do not count; not each time, for the key is
-- kept from others meanwhile.
CREATE OR REPLACE FUNCTION {ns}.has_room(p_key text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    FOR attempt IN 1..2 LOOP
        IF (SELECT count(*) FROM (
            SELECT FROM {ns}.holders h WHERE h.key = p_key AND h.place IS NOT NULL LIMIT 1000
        ) line) < 1000 THEN
            RETURN true;
        END IF;
        EXIT WHEN attempt = 2 OR random() > 0.1;
        DELETE FROM {ns}.holders WHERE ctid = ANY (ARRAY(
            SELECT h.ctid FROM {ns}.holders h
            CROSS JOIN LATERAL (SELECT y.life, y.over FROM {ns}.sessions y WHERE y.id = h.session OFFSET 0) s
            WHERE h.key = p_key AND h.place IS NOT NULL AND {ns}.known(h.want) AND {ns}.counts(h.place, h.n, s.life, s.over) IS FALSE
            FOR UPDATE OF h SKIP LOCKED));
    END LOOP;
    RETURN false;
END $$;

-- Whoever waits asks for one claim, whose key is the last one. Whoever is named in p_past, by whoever waits, makes room if it
-- is as it is named there.
CREATE OR REPLACE FUNCTION {ns}.acquire(
    p_session bytea, p_n bigint, p_m bigint, p_keys text[], p_asks text[], p_limits bigint[], p_though_due boolean,
    p_incarnation bigint, p_waits boolean, p_past text[]
) RETURNS TABLE (
    r_what text, r_token bigint,
    r_place bigint, r_below boolean, r_key text, r_session bytea, r_n bigint, r_m bigint, r_want text, r_since_ms bigint,
    r_line bigint, r_passed bigint, r_label text, r_life text, r_due boolean, r_kept_by text
) LANGUAGE plpgsql SECURITY DEFINER {settings} AS $$
DECLARE
    s record;
    at timestamptz;
    met boolean;
    last int := cardinality(p_keys);
    own bigint;
    freed text[] := '{}';
    passes_at text[] := '{}';
    passes bigint[] := '{}';
    listed int := 0;
    excludes boolean;
    first_key text;
    first_session bytea;
    first_excludes boolean;
BEGIN
    PERFORM ready();
    PERFORM CASE WHEN latches.alone THEN pg_advisory_xact_lock(latches.number)::text
                 ELSE pg_advisory_xact_lock_shared(latches.number)::text END
    FROM (
        SELECT latch(asked.key) AS number,
               -- Of those who pass somebody, the second one must see what the first one did.
               bool_or(asked.ask NOT IN ('IX', 'IS', 'share') OR asked.lim IS NOT NULL OR p_past <> '{}') AS alone
        FROM unnest(p_keys, p_asks, p_limits) asked (key, ask, lim)
        GROUP BY 1 ORDER BY 1 OFFSET 0
    ) latches;
    -- Every statement from here on sees what was committed before the latches were taken.
    at := clock_timestamp();
    SELECT x.life, x.expires, x.over @> p_n AS is_over,
           EXISTS (SELECT FROM base b WHERE b.one AND b.started = pg_postmaster_start_time() AND b.written = b.xmin
                   AND p_incarnation IN (0, b.name)) AS based
    INTO s FROM sessions x WHERE x.id = p_session;
    IF NOT FOUND OR (s.life = 'living' AND s.expires <= at AND NOT p_though_due) THEN
        r_what := 'due';
        RETURN NEXT;
        RETURN;
    ELSIF s.life <> 'living' OR s.is_over THEN
        r_what := 'void';
        RETURN NEXT;
        RETURN;
    ELSIF NOT s.based AND based() <> p_incarnation AND p_incarnation <> 0 THEN
        r_what := 'moved';
        RETURN NEXT;
        RETURN;
    END IF;
    -- Who is in the way is a large question. Mostly nobody is there at all.
    met := EXISTS (SELECT FROM holders h WHERE h.key = ANY (p_keys));
    IF NOT met AND p_asks && '{write,read}' THEN
        met := EXISTS (
            SELECT FROM unnest(p_keys, p_asks) asked (key, ask) CROSS JOIN LATERAL (
                SELECT FROM holders h WHERE h.key >= asked.key || '/' AND h.key < asked.key || '0' LIMIT 1
            ) below
            WHERE asked.ask IN ('write', 'read'));
    END IF;
    IF met THEN
        IF p_waits THEN
            SELECT h.place INTO own FROM holders h
            WHERE (h.key, h.session, h.n) >= (p_keys[last], p_session, p_n)
              AND (h.key, h.session, h.n) <= (p_keys[last], p_session, p_n);
        END IF;
        IF p_past <> '{}' THEN
            SELECT past.* INTO freed, passes_at, passes
            FROM go_past(p_session, p_n, p_m, p_keys, p_asks, p_limits, at, own, p_past) past;
        END IF;
        FOR r_place, r_below, r_key, r_session, r_n, r_m, r_want, r_since_ms, r_line, r_passed, r_label, r_life, r_due IN
            SELECT way.* FROM in_the_way(p_session, p_n, p_m, p_keys, p_asks, p_limits, at, own, passes, NULL) way
            ORDER BY CASE WHEN NOT p_waits THEN way.r_place END, way.r_line NULLS FIRST LIMIT 1000
        LOOP
            -- What is sent again stands already: whoever came since has come beside it, or waits behind it.
            EXIT WHEN listed = 0 AND stands(p_session, p_n, p_keys, p_asks);
            r_what := 'busy';
            r_kept_by := NULL;
            listed := listed + 1;
            excludes := r_want IN ('create', 'upsert', 'write');
            -- As many are told, and mostly the first one keeps all the others.
            IF p_waits AND r_line IS NOT NULL AND listed <= 16
               AND (first_key = r_key AND first_session <> r_session AND (first_excludes OR excludes)) IS NOT TRUE
            THEN
                r_kept_by := kept_by(
                    r_session, r_n, r_m, r_key, r_want, CASE p_asks[last] WHEN 'share' THEN p_limits[last] ELSE 1 END, r_line, at);
            END IF;
            IF first_key IS NULL AND NOT r_due THEN
                first_key := r_key;
                first_session := r_session;
                first_excludes := excludes;
            END IF;
            RETURN NEXT;
        END LOOP;
        IF listed > 0 THEN
            IF p_waits AND own IS NULL THEN
                -- A place that is lost in a crash is asked for again.
                PERFORM set_config('synchronous_commit', 'off', true);
                INSERT INTO holders (key, session, n, m, want, since, place, passed)
                SELECT p_keys[last], p_session, p_n, p_m, p_asks[last], at, next_token(), 0
                WHERE has_room(p_keys[last])
                ON CONFLICT DO NOTHING;
            END IF;
            IF freed <> '{}' THEN
                PERFORM wake(freed);
            END IF;
            RETURN;
        END IF;
    END IF;
    -- Of a share both copies of a request may be here at once. Where neither a share is asked for nor anything was met,
    -- there can be no conflict under the latches, and looking for one costs a record in the log for each row.
    IF NOT met AND NOT 'share' = ANY (p_asks) THEN
        INSERT INTO holders (key, session, n, m, want, since)
        SELECT asked.key, p_session, p_n, p_m, asked.ask, at
        FROM unnest(p_keys, p_asks) asked (key, ask) WHERE asked.ask NOT IN ('IX', 'IS');
    ELSE
        -- A request that is sent again writes again, so that its answer waits for the disk and for the standbys.
        INSERT INTO holders AS h (key, session, n, m, want, since)
        SELECT asked.key, p_session, p_n, p_m, asked.ask, at
        FROM unnest(p_keys, p_asks) asked (key, ask) WHERE asked.ask NOT IN ('IX', 'IS')
        ON CONFLICT (key, session, n) DO UPDATE
        SET m = excluded.m, want = excluded.want, place = NULL, passed = NULL,
            since = CASE WHEN h.place IS NULL THEN h.since ELSE excluded.since END;
    END IF;
    IF passes <> '{}' THEN
        UPDATE holders h SET passed = h.passed + 1 FROM unnest(passes_at, passes) past (key, place)
        WHERE h.key = past.key AND h.place = past.place;
    END IF;
    -- No row is waited for after this one's latch.
    IF freed <> '{}' THEN
        PERFORM wake(freed);
    END IF;
    r_what := 'acquired';
    r_token := next_token();
    RETURN NEXT;
END $$;

-- The same for one flat key, by far the most frequent. Each query and each function that is called costs as much as the
-- work that it does: the words of ready stand here (of a standby the server says the like), latches are taken and tokens
-- drawn by expressions, and there is one query, which finds nothing to do where anything is in the way.
CREATE OR REPLACE FUNCTION {ns}.acquire_one(
    p_session bytea, p_n bigint, p_m bigint, p_key text, p_ask text, p_limit bigint, p_though_due boolean,
    p_incarnation bigint, p_waits boolean
) RETURNS TABLE (
    r_what text, r_token bigint,
    r_place bigint, r_below boolean, r_key text, r_session bytea, r_n bigint, r_m bigint, r_want text, r_since_ms bigint,
    r_line bigint, r_passed bigint, r_label text, r_life text, r_due boolean, r_kept_by text
) LANGUAGE plpgsql SECURITY DEFINER {fewer_settings} AS $$
DECLARE
    latched text;
    at timestamptz;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('synchronous_commit') = 'off'
       OR current_setting('lock_timeout') = '0' THEN
        PERFORM ready();
    END IF;
    latched := CASE WHEN p_ask = 'share' AND p_limit IS NULL THEN pg_advisory_xact_lock_shared(latch(p_key))::text
                    ELSE pg_advisory_xact_lock(latch(p_key))::text END;
    at := clock_timestamp();
    IF p_ask = 'share' THEN
        INSERT INTO holders (key, session, n, m, want, since)
        SELECT p_key, p_session, p_n, p_m, p_ask, at FROM sessions s
        WHERE s.id = p_session AND (s.life = 'living') IS TRUE AND (s.expires > at OR p_though_due) AND NOT s.over @> p_n
          AND (SELECT b.started = pg_postmaster_start_time() AND b.written = b.xmin AND p_incarnation IN (0, b.name)
               FROM base b WHERE b.one)
          -- Any number of shares stand beside each other, and of those who wait for one.
          AND NOT EXISTS (SELECT FROM holders h WHERE h.key = p_key AND (h.want <> 'share' OR p_limit IS NOT NULL))
        ON CONFLICT DO NOTHING;
    ELSE
        INSERT INTO holders (key, session, n, m, want, since)
        SELECT p_key, p_session, p_n, p_m, p_ask, at FROM sessions s
        WHERE s.id = p_session AND (s.life = 'living') IS TRUE AND (s.expires > at OR p_though_due) AND NOT s.over @> p_n
          AND (SELECT b.started = pg_postmaster_start_time() AND b.written = b.xmin AND p_incarnation IN (0, b.name)
               FROM base b WHERE b.one)
          AND NOT EXISTS (SELECT FROM holders h WHERE h.key = p_key);
    END IF;
    IF FOUND THEN
        r_what := 'acquired';
        r_token := next_token();
        RETURN NEXT;
    ELSE
        RETURN QUERY
            SELECT * FROM acquire(
                p_session, p_n, p_m, ARRAY[p_key], ARRAY[p_ask], ARRAY[p_limit], p_though_due, p_incarnation, p_waits, '{}');
    END IF;
END $$;

-- Many requests of one session, each for one flat key, in one transaction: each as by acquire_one where nobody holds the
-- key, or waits for it. Nobody else who decides about one is waited for, so that the order of the latches is all the same. What is not
-- granted is not in the answer; it has to be asked by itself.
CREATE OR REPLACE FUNCTION {ns}.acquire_many(
    p_session bytea, p_ns bigint[], p_ms bigint[], p_keys text[], p_asks text[], p_incarnation bigint
) RETURNS TABLE (r_key text, r_n bigint, r_token bigint) LANGUAGE plpgsql SECURITY DEFINER {settings} AS $$
DECLARE
    s record;
    latched bigint[];
    at timestamptz;
BEGIN
    PERFORM ready();
    -- Of those who ask for the same key, the first.
    latched := ARRAY(
        SELECT DISTINCT ON (asked.key) asked.place FROM unnest(p_keys) WITH ORDINALITY asked (key, place)
        WHERE pg_try_advisory_xact_lock(latch(asked.key)) ORDER BY asked.key, asked.place);
    at := clock_timestamp();
    SELECT x.life, x.expires, x.over,
           EXISTS (SELECT FROM base b WHERE b.one AND b.started = pg_postmaster_start_time() AND b.written = b.xmin
                   AND p_incarnation IN (0, b.name)) AS based
    INTO s FROM sessions x WHERE x.id = p_session;
    IF NOT FOUND OR s.life <> 'living' OR s.expires <= at OR NOT s.based THEN
        RETURN;
    END IF;
    RETURN QUERY
        INSERT INTO holders AS h (key, session, n, m, want, since)
        SELECT asked.key, p_session, asked.n, asked.m, asked.ask, at
        FROM unnest(p_ns, p_ms, p_keys, p_asks) WITH ORDINALITY asked (n, m, key, ask, place)
        WHERE asked.place = ANY (latched) AND NOT s.over @> asked.n
          -- Behind an OFFSET 0 each key is looked for by itself.
          AND NOT EXISTS (SELECT FROM holders x WHERE x.key = asked.key OFFSET 0)
        RETURNING h.key, h.n, next_token();
END $$;

-- A release that is lost in a crash brings back a holder whose number is over with the next renewal.
-- Says what the grant's holders were until then: 'held', 'fallen' where they did not count any more, 'absent' where not
-- all of them were there; what waits is none. Whoever else frees them has ended the session before.
CREATE OR REPLACE FUNCTION {ns}.release(p_session bytea, p_n bigint, p_keys text[]) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER {settings} AS $$
DECLARE
    removed bigint;
BEGIN
    PERFORM ready_without_waiting();
    -- Said in this way, only the primary key fits; by the other index, each key would read the whole grant.
    WITH gone AS (
        DELETE FROM holders h USING unnest(p_keys) k
        WHERE (h.key, h.session, h.n) >= (k, p_session, p_n) AND (h.key, h.session, h.n) <= (k, p_session, p_n)
          AND known(h.want)
        RETURNING h.place
    )
    SELECT count(*) INTO removed FROM gone WHERE gone.place IS NULL;
    PERFORM wake(p_keys);
    IF removed < cardinality(p_keys) THEN
        RETURN 'absent';
    END IF;
    RETURN CASE WHEN EXISTS (
        SELECT FROM sessions s WHERE s.id = p_session AND (s.life = 'living') IS TRUE AND NOT s.over @> p_n
    ) THEN 'held' ELSE 'fallen' END;
END $$;

-- The same for one flat key.
CREATE OR REPLACE FUNCTION {ns}.release_one(p_session bytea, p_n bigint, p_key text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER {fewer_settings} AS $$
DECLARE
    done text;
    lives boolean;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('lock_timeout') = '0' THEN
        PERFORM ready();
    END IF;
    done := set_config('synchronous_commit', 'off', true);
    DELETE FROM holders h WHERE h.key = p_key AND h.session = p_session AND h.n = p_n AND known(h.want)
    RETURNING CASE WHEN h.place IS NULL THEN EXISTS (
        SELECT FROM sessions s WHERE s.id = p_session AND (s.life = 'living') IS TRUE AND NOT s.over @> p_n
    ) END INTO lives;
    done := pg_advisory_xact_lock_shared(latch(''))::text;
    PERFORM pg_notify(w.channel, w.id || ' ' || w.key) FROM waiters w WHERE w.key = p_key;
    RETURN CASE WHEN lives THEN 'held' WHEN NOT lives THEN 'fallen' ELSE 'absent' END;
END $$;

-- Many releases of one session, each of one flat key. What holds nothing, or is being confirmed by a transaction that has
-- not ended, is not in the answer; it has to be asked by itself.
CREATE OR REPLACE FUNCTION {ns}.release_many(p_session bytea, p_ns bigint[], p_keys text[])
RETURNS TABLE (r_key text, r_n bigint, r_stood text) LANGUAGE plpgsql SECURITY DEFINER {settings} AS $$
DECLARE
    s record;
BEGIN
    PERFORM ready_without_waiting();
    SELECT x.life, x.over INTO s FROM sessions x WHERE x.id = p_session;
    RETURN QUERY
        DELETE FROM holders h WHERE ctid = ANY (ARRAY(
            SELECT free.ctid FROM unnest(p_ns, p_keys) gone (n, key) CROSS JOIN LATERAL (
                SELECT x.ctid FROM holders x
                WHERE (x.key, x.session, x.n) >= (gone.key, p_session, gone.n)
                  AND (x.key, x.session, x.n) <= (gone.key, p_session, gone.n) AND known(x.want)
                FOR UPDATE SKIP LOCKED
            ) free))
        RETURNING h.key, h.n, CASE WHEN h.place IS NOT NULL THEN 'absent'
                                   WHEN s.life = 'living' AND NOT s.over @> h.n THEN 'held' ELSE 'fallen' END;
    PERFORM wake(p_keys);
END $$;

-- Whether the grant holds all of these and its session lives. Until the transaction ends, nobody ends the session, and nobody
-- releases or retires the grant.
CREATE OR REPLACE FUNCTION {ns}.confirm(p_session bytea, p_n bigint, p_keys text[], p_wants text[]) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER {settings} SET lock_timeout = '4s' AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'the transaction is not READ COMMITTED' USING ERRCODE = 'LK001';
    END IF;
    PERFORM FROM sessions
    WHERE id = p_session AND (life = 'living') IS TRUE AND expires > clock_timestamp() AND NOT over @> p_n FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF cardinality(p_keys) <> (
        SELECT count(*) FROM unnest(p_keys, p_wants) asked (key, want) CROSS JOIN LATERAL (
            SELECT FROM holders h
            WHERE (h.key, h.session, h.n) >= (asked.key, p_session, p_n)
              AND (h.key, h.session, h.n) <= (asked.key, p_session, p_n) AND h.want = asked.want AND h.place IS NULL
            FOR KEY SHARE
        ) held) THEN
        RETURN false;
    END IF;
    -- A renewal may have retired the grant while this waited for its rows.
    RETURN EXISTS (SELECT FROM sessions WHERE id = p_session AND NOT over @> p_n);
END $$;

-- Removes what does not count of a session that has a record.
CREATE OR REPLACE FUNCTION {ns}.sweep_session(p_id bytea, p_limit bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    s {ns}.sessions;
    removed bigint;
BEGIN
    SELECT * INTO s FROM {ns}.sessions WHERE id = p_id;
    DELETE FROM {ns}.holders WHERE ctid = ANY (ARRAY(
        SELECT h.ctid
        FROM unnest(CASE s.life WHEN 'dead' THEN '{(,)}' ELSE s.over END) gone
        CROSS JOIN LATERAL (
            SELECT x.ctid FROM {ns}.holders x
            WHERE x.session = p_id AND {ns}.known(x.want)
              AND x.n >= coalesce(lower(gone), -9223372036854775808)
              AND x.n <= coalesce(upper(gone) - 1, 9223372036854775807)
            ORDER BY x.n LIMIT p_limit FOR UPDATE SKIP LOCKED
        ) h
        LIMIT p_limit));
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END $$;

CREATE OR REPLACE FUNCTION {ns}.sweep(p_id bytea, p_limit bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER {settings} AS $$
BEGIN
    PERFORM ready();
    PERFORM end_sessions(ARRAY[p_id], 'due');
    RETURN sweep_session(p_id, p_limit);
END $$;

-- A sweep of the namespace is several transactions, each of them short: what one ends or removes is locked until it is
-- committed, and whom it wakes waits as long.

-- Ends sessions that are due. Says whether there may be more.
CREATE OR REPLACE FUNCTION {ns}.end_due() RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER {settings} AS $$
DECLARE
    due bytea[];
    waits text := current_setting('synchronous_commit');
    done text;
BEGIN
    -- Nobody else removes what a process has left whose connection is gone. It comes first: it need not wait for the disk,
    -- and what follows does.
    PERFORM unwatch(ARRAY(SELECT w.id FROM waiters w WHERE w.pid NOT IN (SELECT pid FROM pg_stat_activity)));
    done := set_config('synchronous_commit', waits, true);
    due := ARRAY(
        SELECT id FROM sessions WHERE life = 'living' AND expires <= clock_timestamp() ORDER BY ended LIMIT 1000);
    PERFORM end_sessions(due, 'due');
    RETURN cardinality(due) >= 1000;
END $$;

-- Removes what does not count of some of the sessions that hold something, behind this one. Says where to go on.
CREATE OR REPLACE FUNCTION {ns}.sweep_page(
    p_after bytea, p_limit bigint, OUT r_removed bigint, OUT r_sessions bigint, OUT r_next bytea)
LANGUAGE plpgsql SECURITY DEFINER {settings} AS $$
BEGIN
    PERFORM ready();
    r_removed := 0;
    r_sessions := 0;
    r_next := p_after;
    WHILE r_removed < p_limit AND r_sessions < 500 LOOP
        SELECT session INTO r_next FROM holders WHERE session > r_next ORDER BY session LIMIT 1;
        EXIT WHEN NOT FOUND;
        IF NOT EXISTS (SELECT FROM sessions WHERE id = r_next) THEN
            PERFORM end_sessions(ARRAY[r_next], 'due');
        END IF;
        r_sessions := r_sessions + 1;
        r_removed := r_removed + sweep_session(r_next, p_limit - r_removed);
    END LOOP;
END $$;

-- Forgets sessions that died long ago, of which nothing is left.
CREATE OR REPLACE FUNCTION {ns}.forget(p_limit bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER {settings} AS $$
DECLARE
    forgotten bigint;
    -- The clock itself is no bound of a search in an index.
    long_ago timestamptz := clock_timestamp() - interval '24 hours';
BEGIN
    PERFORM ready();
    DELETE FROM sessions WHERE id = ANY (ARRAY(
        SELECT s.id FROM sessions s
        WHERE s.life = 'dead' AND s.ended < long_ago
          AND (SELECT h.n FROM holders h WHERE h.session = s.id ORDER BY h.n LIMIT 1) IS NULL
        ORDER BY s.ended LIMIT p_limit FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    RETURN forgotten;
END $$;
