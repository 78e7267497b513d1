-- What a turn cost: of its input, what the provider's cache had; millionths of a dollar, null when a price is not known.
ALTER TABLE turns ADD COLUMN cached_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE turns ADD COLUMN micro_usd INTEGER;
-- Tokens that were issued: their terms, never their values.
CREATE TABLE tokens (
    jti        TEXT PRIMARY KEY,
    issuer     INTEGER NOT NULL,
    name       TEXT,
    agent      TEXT REFERENCES agents (id),
    issued_at  INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    revoked_at INTEGER
) STRICT;
-- An agent that starts itself again after a failure, and one that becomes another when its turns are over.
ALTER TABLE agents ADD COLUMN failures INTEGER NOT NULL DEFAULT 0;
ALTER TABLE agents ADD COLUMN retry_at INTEGER;
ALTER TABLE agents ADD COLUMN next BLOB;
ALTER TABLE agents ADD COLUMN next_digest TEXT REFERENCES images (digest);
-- Compactions: from which turn on a model reads a session, and what stands before that. The first epoch has no row.
CREATE TABLE epochs (
    session   TEXT NOT NULL REFERENCES sessions (id),
    epoch     INTEGER NOT NULL,
    turn      INTEGER NOT NULL,
    from_turn INTEGER NOT NULL,
    strategy  INTEGER NOT NULL,
    summary   TEXT,
    at        INTEGER NOT NULL,
    dropped   INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (session, epoch)
) STRICT, WITHOUT ROWID;
-- Sessions: their paths and branches, forks, and when the last turn of each ended.
ALTER TABLE sessions ADD COLUMN forked_from TEXT;
ALTER TABLE sessions ADD COLUMN forked_at INTEGER;
ALTER TABLE sessions ADD COLUMN cuts INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN last_active INTEGER NOT NULL DEFAULT 0;
UPDATE sessions SET last_active = coalesce(
    (SELECT max(coalesce(ended_at, created_at)) FROM turns WHERE session = sessions.id), created_at);
ALTER TABLE turns ADD COLUMN dropped INTEGER NOT NULL DEFAULT 0;
ALTER TABLE turns ADD COLUMN parent TEXT;
ALTER TABLE turns ADD COLUMN replaces TEXT;
ALTER TABLE turns ADD COLUMN origin TEXT;
DROP INDEX IF EXISTS turns_session;
-- The limit that a tool call ran into.
ALTER TABLE steps ADD COLUMN cause INTEGER;
-- Names of images. One that neither a name nor an agent has is gone: only agents that were removed refer to it still.
ALTER TABLE images ADD COLUMN gone INTEGER NOT NULL DEFAULT 0;
CREATE TABLE image_refs (
    ref    TEXT PRIMARY KEY,
    digest TEXT NOT NULL REFERENCES images (digest),
    at     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT OR REPLACE INTO image_refs (ref, digest, at)
SELECT name, digest, coalesce((SELECT max(created_at) FROM agents WHERE image_digest = images.digest), 0)
FROM images ORDER BY images.rowid;
-- A turn whose agent failed waits: it has no slot until its agent is ready again.
UPDATE turns SET state = 3 WHERE state = 2 AND agent IN (SELECT id FROM agents WHERE state = 5);
