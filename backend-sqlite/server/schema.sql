-- Version 3 of the stored shape. Session ids are 16 bytes, big-endian; unsigned numbers are stored by their bits.

CREATE TABLE sessions (
    id         BLOB    NOT NULL PRIMARY KEY,
    label      TEXT    NOT NULL,
    ttl_ms     INTEGER NOT NULL,
    boot       TEXT    NOT NULL, -- the boot that expires_ms counts from
    expires_ms INTEGER NOT NULL,
    life       TEXT    NOT NULL, -- living, abandoned or dead
    ended_ms   INTEGER,          -- since 1970: when it ended, for forgetting; while it lives, when it is due, for another boot
    seq        INTEGER NOT NULL,
    over       TEXT    NOT NULL, -- ranges such as 1-4,7-7
    adoption   INTEGER NOT NULL,
    adopter    BLOB,
    settled    INTEGER,          -- the adoption number by which it was settled
    notes      TEXT    NOT NULL
) STRICT, WITHOUT ROWID;

-- For a sweep: those that live, and the dead, in the order of their ends.
CREATE INDEX sessions_by_life ON sessions (life, ended_ms);

-- At most one for each session, beside its record so that a renewal does not rewrite it.
CREATE TABLE intents (
    session BLOB    NOT NULL PRIMARY KEY,
    token   INTEGER NOT NULL,
    payload BLOB    NOT NULL
) STRICT;

-- One row for each key of a grant, and of one that waits. The ancestors of a path are not stored: whoever holds /a/b holds /a by standing in
-- the range from '/a/' to '/a0'.
CREATE TABLE holders (
    key      TEXT    NOT NULL,
    session  BLOB    NOT NULL,
    n        INTEGER NOT NULL,           -- with the session: the grant
    m        INTEGER NOT NULL,           -- with the session: the owner
    want     TEXT    NOT NULL,           -- create, upsert, share, write or read
    since_ms INTEGER NOT NULL,           -- since 1970, for people
    place    INTEGER,                    -- it holds nothing and waits: its place in line
    passed   INTEGER,                    -- how often somebody has passed it
    PRIMARY KEY (key, session, n)
) STRICT, WITHOUT ROWID;

CREATE INDEX holders_by_session ON holders (session, n);

-- The last fencing token is kept in m, under a key that nobody can ask for: in a file with few locks that row is on the
-- page that a grant writes anyway.
INSERT INTO holders (key, session, n, m, want, since_ms) VALUES ('', x'', 0, 0, 'token', 0);
