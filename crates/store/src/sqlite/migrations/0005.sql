-- Images are OCI manifests and indexes; their contents lie in files by their digests. Rows of earlier releases are
-- whole records of agents, which no file has.
ALTER TABLE images ADD COLUMN kind INTEGER NOT NULL DEFAULT 1;
ALTER TABLE images ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
UPDATE images SET bytes = length(record);
ALTER TABLE images ADD COLUMN complete INTEGER NOT NULL DEFAULT 1;
-- Images that others cannot do without: the tools of an agent.
CREATE TABLE image_needs (
    image TEXT NOT NULL REFERENCES images (digest),
    needs TEXT NOT NULL,
    PRIMARY KEY (image, needs)
) STRICT, WITHOUT ROWID;
