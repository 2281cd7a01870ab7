-- Version 3 of the stored shape, a statement to a blank line. Times are microseconds since 1970 by the server's clock.
-- Keys and ids are bytes, so that no collation takes two of them for one.

CREATE TABLE IF NOT EXISTS lockkeeper_sessions (
    id       BINARY(16)      NOT NULL PRIMARY KEY,
    label    VARBINARY(256)  NOT NULL,
    ttl      BIGINT UNSIGNED NOT NULL,
    due      BIGINT UNSIGNED NOT NULL,
    life     VARCHAR(16)     NOT NULL, -- living, abandoned or dead
    ended    BIGINT UNSIGNED,
    seq      BIGINT UNSIGNED NOT NULL,
    retired  MEDIUMTEXT      NOT NULL, -- numbers that are over: ranges such as 1-4,7-7
    adoption BIGINT UNSIGNED NOT NULL,
    adopter  BINARY(16),
    settled  BIGINT UNSIGNED,          -- the adoption number by which it was settled
    notes    TEXT            NOT NULL,
    KEY by_due (life, due),
    KEY by_end (life, ended)
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin

CREATE TABLE IF NOT EXISTS lockkeeper_intents (
    session BINARY(16)      NOT NULL PRIMARY KEY,
    token   BIGINT UNSIGNED NOT NULL,
    payload MEDIUMBLOB      NOT NULL
) ENGINE = InnoDB

-- One row for each key of a grant, and of one that waits. Who holds /a/b holds /a by standing between '/a/' and '/a0'.
CREATE TABLE IF NOT EXISTS lockkeeper_holders (
    name    VARBINARY(1024) NOT NULL,
    session BINARY(16)      NOT NULL,
    n       BIGINT UNSIGNED NOT NULL, -- with the session: the grant
    m       BIGINT UNSIGNED NOT NULL, -- with the session: the owner
    want    VARCHAR(16)     NOT NULL, -- create, upsert, share, write or read
    since   BIGINT UNSIGNED NOT NULL,
    place   BIGINT UNSIGNED,          -- it holds nothing and waits: its place in line
    passed  INT UNSIGNED,             -- how often somebody has passed it
    PRIMARY KEY (name, session, n),
    KEY by_session (session, n, name)
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin

-- The last fencing token. Whoever writes anything locks this row first: one writer at a time. A program of another version
-- has no row here, and writes nothing: nobody of another version sees who waits.
CREATE TABLE IF NOT EXISTS lockkeeper_tokens (
    version INT             NOT NULL PRIMARY KEY CHECK (version = 3),
    last    BIGINT UNSIGNED NOT NULL
) ENGINE = InnoDB

INSERT IGNORE INTO lockkeeper_tokens (version, last) VALUES (3, 0)
