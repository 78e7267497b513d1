-- Sandboxes that belong to no agent, and the execs in them. Their rows are never deleted, so no id is used twice.
CREATE TABLE sandboxes (
    number      INTEGER PRIMARY KEY AUTOINCREMENT,
    id          TEXT NOT NULL UNIQUE,
    state       INTEGER NOT NULL,
    incarnation INTEGER NOT NULL,
    uid         INTEGER,
    created_at  INTEGER NOT NULL,
    changed_at  INTEGER NOT NULL,
    ready_at    INTEGER,
    deleted_at  INTEGER,
    failure     INTEGER,
    detail      TEXT,
    record      BLOB NOT NULL
) STRICT;
CREATE TABLE sandbox_labels (
    key     TEXT NOT NULL,
    value   TEXT NOT NULL,
    sandbox TEXT NOT NULL REFERENCES sandboxes (id),
    PRIMARY KEY (key, value, sandbox)
) STRICT, WITHOUT ROWID;
CREATE TABLE execs (
    number      INTEGER PRIMARY KEY AUTOINCREMENT,
    id          TEXT NOT NULL UNIQUE,
    sandbox     TEXT NOT NULL REFERENCES sandboxes (id),
    state       INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    finished_at INTEGER,
    exit_code   INTEGER,
    signal      INTEGER,
    cause       INTEGER,
    reason      INTEGER,
    error       TEXT,
    cancel      TEXT,
    stdout_seen INTEGER NOT NULL DEFAULT 0,
    stdout_kept INTEGER NOT NULL DEFAULT 0,
    stderr_seen INTEGER NOT NULL DEFAULT 0,
    stderr_kept INTEGER NOT NULL DEFAULT 0,
    request     BLOB NOT NULL,
    stdin       BLOB NOT NULL
) STRICT;
