-- Jobs. Their output is in output.db; the stdin, which may be long, stands last, so that listings do not read it.
CREATE TABLE jobs (
    id             TEXT PRIMARY KEY,
    agent          TEXT NOT NULL REFERENCES agents (id),
    session        TEXT,
    state          INTEGER NOT NULL,
    priority       INTEGER NOT NULL,
    created_at     INTEGER NOT NULL,
    started_at     INTEGER,
    finished_at    INTEGER,
    exit_code      INTEGER,
    signal         INTEGER,
    cause          INTEGER,
    error          TEXT,
    cancel         TEXT,
    boot           TEXT,
    stdout_seen    INTEGER NOT NULL DEFAULT 0,
    stdout_kept    INTEGER NOT NULL DEFAULT 0,
    stderr_seen    INTEGER NOT NULL DEFAULT 0,
    stderr_kept    INTEGER NOT NULL DEFAULT 0,
    archived       INTEGER NOT NULL DEFAULT 0,
    told           INTEGER NOT NULL DEFAULT 0,
    output_removed INTEGER NOT NULL DEFAULT 0,
    request        BLOB NOT NULL,
    stdin          BLOB NOT NULL
) STRICT;
CREATE TABLE job_labels (
    key   TEXT NOT NULL,
    value TEXT NOT NULL,
    job   TEXT NOT NULL REFERENCES jobs (id),
    PRIMARY KEY (key, value, job)
) STRICT, WITHOUT ROWID;
