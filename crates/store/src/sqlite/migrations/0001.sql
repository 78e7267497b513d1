CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE counters (
    key   TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE images (
    digest TEXT PRIMARY KEY,
    name   TEXT NOT NULL,
    record BLOB NOT NULL
) STRICT;

CREATE TABLE agents (
    id             TEXT PRIMARY KEY,
    name           TEXT NOT NULL,
    image          TEXT NOT NULL,
    image_digest   TEXT NOT NULL REFERENCES images (digest),
    lineage        TEXT NOT NULL,
    sandbox        TEXT NOT NULL,
    state          INTEGER NOT NULL,
    failure_reason INTEGER,
    failure_detail TEXT,
    incarnation    INTEGER NOT NULL,
    uid            INTEGER,
    created_at     INTEGER NOT NULL,
    started_at     INTEGER,
    spec           BLOB NOT NULL
) STRICT;

CREATE TABLE sessions (
    id         TEXT PRIMARY KEY,
    agent      TEXT NOT NULL REFERENCES agents (id),
    sender     TEXT,
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE turns (
    id            TEXT PRIMARY KEY,
    session       TEXT NOT NULL REFERENCES sessions (id),
    agent         TEXT NOT NULL,
    number        INTEGER NOT NULL,
    state         INTEGER NOT NULL,
    first_event   INTEGER NOT NULL,
    first_message INTEGER NOT NULL,
    created_at    INTEGER NOT NULL,
    ended_at      INTEGER,
    input_tokens  INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    failure       BLOB
) STRICT, WITHOUT ROWID;

CREATE TABLE steps (
    turn       TEXT NOT NULL REFERENCES turns (id),
    step       INTEGER NOT NULL,
    ordinal    INTEGER NOT NULL,
    id         TEXT NOT NULL,
    kind       INTEGER NOT NULL,
    name       TEXT NOT NULL,
    state      INTEGER NOT NULL,
    attempt    INTEGER NOT NULL,
    call       TEXT,
    exec       TEXT,
    request    BLOB,
    exit_code  INTEGER,
    signal     INTEGER,
    started_at INTEGER NOT NULL,
    ended_at   INTEGER,
    PRIMARY KEY (turn, step, ordinal)
) STRICT, WITHOUT ROWID;

CREATE TABLE messages (
    session TEXT NOT NULL REFERENCES sessions (id),
    seq     INTEGER NOT NULL,
    turn    TEXT NOT NULL,
    number  INTEGER NOT NULL,
    step    INTEGER NOT NULL,
    role    INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    body    BLOB NOT NULL,
    PRIMARY KEY (session, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE events (
    seq        INTEGER PRIMARY KEY,
    stream     TEXT NOT NULL,
    stream_seq INTEGER NOT NULL,
    at         INTEGER NOT NULL,
    kind       INTEGER NOT NULL,
    data       BLOB NOT NULL
) STRICT;

CREATE TABLE requests (
    caller     TEXT NOT NULL,
    request_id TEXT NOT NULL,
    digest     BLOB NOT NULL,
    answer     BLOB NOT NULL,
    at         INTEGER NOT NULL,
    PRIMARY KEY (caller, request_id)
) STRICT, WITHOUT ROWID;

-- Derived: the newest stream_seq of every stream, up to the event that the row without a name tells; what came after
-- is counted from the events, and all of it when the table is empty.
CREATE TABLE streams (
    stream TEXT PRIMARY KEY,
    head   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
