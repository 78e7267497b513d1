CREATE UNIQUE INDEX IF NOT EXISTS agents_name ON agents (name) WHERE state < 7;
CREATE INDEX IF NOT EXISTS agents_image ON agents (image_digest);
CREATE INDEX IF NOT EXISTS agents_next_image ON agents (next_digest) WHERE next_digest IS NOT NULL;
CREATE INDEX IF NOT EXISTS sessions_agent ON sessions (agent, sender, created_at);
CREATE UNIQUE INDEX IF NOT EXISTS turns_path ON turns (session, dropped, number);
CREATE INDEX IF NOT EXISTS turns_live ON turns (agent) WHERE state < 10;
CREATE UNIQUE INDEX IF NOT EXISTS events_stream ON events (stream, stream_seq);
CREATE INDEX IF NOT EXISTS requests_at ON requests (at);
CREATE INDEX IF NOT EXISTS lineages_agent ON lineages (agent);
