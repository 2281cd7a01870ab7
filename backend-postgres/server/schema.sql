-- Version 3 of the stored shape. Session ids are 16 bytes, big-endian. Unsigned numbers of 64 bits are stored less 2^63,
-- so that they sort; tokens are stored as they are. A vacuum never gives space back to the system: nobody could use a table
-- meanwhile.

CREATE TABLE {ns}.meta (
    one     boolean NOT NULL PRIMARY KEY DEFAULT true CHECK (one),
    version integer NOT NULL
);

INSERT INTO {ns}.meta (version) VALUES (3);

-- The tokens. Values that were drawn ahead would come out of order.
CREATE SEQUENCE {ns}.token AS bigint CACHE 1;

-- When the tokens were raised last, in at most one row.
CREATE TABLE {ns}.base (
    one      boolean     NOT NULL PRIMARY KEY DEFAULT true CHECK (one),
    started  timestamptz NOT NULL,   -- the server that did it
    written  xid         NOT NULL,   -- by this transaction: a row that a dump has brought is of another one
    timeline bigint      NOT NULL,   -- 0 where the server does not tell it
    name     bigint      NOT NULL    -- of the incarnation: a token, so that none comes back
);

CREATE TABLE {ns}.sessions (
    id       bytea          NOT NULL PRIMARY KEY CHECK (octet_length(id) = 16),
    label    text           NOT NULL CHECK (octet_length(label) <= 256),
    ttl_ms   bigint         NOT NULL CHECK (ttl_ms >= 0),
    expires  timestamptz    NOT NULL,
    life     text           NOT NULL CHECK (life IN ('living', 'abandoned', 'dead')),
    ended    timestamptz,            -- for forgetting; no decision about a lock depends on it
    seq      bigint         NOT NULL,
    over     int8multirange NOT NULL,
    adoption bigint         NOT NULL,
    adopter  bytea          CHECK (octet_length(adopter) = 16),
    settled  bigint,                 -- the adoption number by which it was settled
    notes    text           NOT NULL DEFAULT ''
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
        vacuum_truncate = off);

-- For a sweep: those that live, which have no end, and the dead, in the order of their ends. A renewal changes neither.
CREATE INDEX sessions_by_life ON {ns}.sessions (life, ended);

-- At most one for each session, beside its record so that a renewal does not rewrite it.
CREATE TABLE {ns}.intents (
    session bytea  NOT NULL PRIMARY KEY,
    token   bigint NOT NULL CHECK (token > 0),
    payload bytea  NOT NULL CHECK (octet_length(payload) <= 65536)
);

-- A type of its own, because a check of the table costs each insert as much as an index does.
CREATE DOMAIN {ns}.session AS bytea CHECK (octet_length(value) = 16);

-- One row for each key of a grant, and of one that waits. The ancestors of a path are not stored: whoever holds /a/b holds
-- /a by standing in the range from '/a/' to '/a0'. A want that is not known here is of a newer version: it is held, and never
-- changed.
CREATE TABLE {ns}.holders (
    key     text        COLLATE "C" NOT NULL,
    session {ns}.session NOT NULL,
    n       bigint      NOT NULL,    -- with the session: the grant
    m       bigint      NOT NULL,    -- with the session: the owner
    want    text        NOT NULL,    -- create, upsert, share, write or read
    since   timestamptz NOT NULL,    -- for people
    place   bigint,                  -- it holds nothing and waits: its place in line, a token, so that no other has it
    passed  bigint,                  -- how often somebody has passed it
    PRIMARY KEY (key, session, n)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
        vacuum_truncate = off);

CREATE INDEX holders_by_session ON {ns}.holders (session, n);

-- The line of each key. Who waits for nothing is not in it.
CREATE INDEX holders_in_line ON {ns}.holders (key, place) WHERE place IS NOT NULL;

-- Of which keys a process is told, so that nobody else is. After a crash of the server nobody is told of any.
CREATE UNLOGGED TABLE {ns}.waiters (
    id      bigint  NOT NULL PRIMARY KEY,
    key     text    COLLATE "C" NOT NULL,
    channel text    COLLATE "C" NOT NULL,
    pid     integer NOT NULL         -- of the connection that listens
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
        vacuum_truncate = off);

CREATE INDEX waiters_by_key ON {ns}.waiters (key);
CREATE INDEX waiters_by_channel ON {ns}.waiters (channel);
