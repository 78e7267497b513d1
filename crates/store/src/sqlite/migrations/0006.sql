-- Work that killed the daemon again and again, set aside until an operator decides.
CREATE TABLE quarantine (
    id TEXT PRIMARY KEY,
    kind INTEGER NOT NULL,
    subject TEXT NOT NULL,
    agent TEXT,
    detail TEXT NOT NULL,
    deaths INTEGER NOT NULL,
    since INTEGER NOT NULL,
    UNIQUE (kind, subject)
) STRICT, WITHOUT ROWID;
