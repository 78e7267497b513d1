ALTER TABLE agents ADD COLUMN runs INTEGER NOT NULL DEFAULT 0;
UPDATE agents SET runs = incarnation;

CREATE TABLE lineages (
    id           TEXT PRIMARY KEY,
    agent        TEXT NOT NULL REFERENCES agents (id),
    state        INTEGER NOT NULL,
    ended_reason INTEGER,
    revivals     INTEGER NOT NULL,
    deaths       INTEGER NOT NULL,
    detail       TEXT,
    created_at   INTEGER NOT NULL,
    ended_at     INTEGER
) STRICT;

INSERT INTO lineages (id, agent, state, ended_reason, revivals, deaths, created_at, ended_at)
SELECT lineage, id, iif(state IN (6, 7), 5, 1), iif(state IN (6, 7), 3, NULL), 0, 0, created_at,
    iif(state IN (6, 7), coalesce(started_at, created_at), NULL) FROM agents;
