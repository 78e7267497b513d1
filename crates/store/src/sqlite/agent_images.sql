CREATE TABLE IF NOT EXISTS agent_images (agent TEXT NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (agent, digest)) STRICT, WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS agent_images_new AFTER INSERT ON agents WHEN new.state < {AGENT_REMOVED} BEGIN
    INSERT INTO agent_images (agent, digest) VALUES (new.id, '');
END;
CREATE TRIGGER IF NOT EXISTS agent_images_spec AFTER UPDATE OF image_digest, spec, next ON agents BEGIN
    DELETE FROM agent_images WHERE agent = new.id;
    INSERT INTO agent_images (agent, digest) VALUES (new.id, '');
END;
CREATE TRIGGER IF NOT EXISTS agent_images_removed AFTER UPDATE OF state ON agents WHEN new.state >= {AGENT_REMOVED} BEGIN
    DELETE FROM agent_images WHERE agent = new.id;
END;
