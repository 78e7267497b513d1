-- Derived: the images that each agent has, its own and those of its tools, which stand in its spec. An agent with the
-- digest '' was written by a release that does not know this table: whoever opens the database next counts it.
CREATE TABLE agent_images (
    agent  TEXT NOT NULL,
    digest TEXT NOT NULL,
    PRIMARY KEY (agent, digest)
) STRICT, WITHOUT ROWID;

INSERT INTO agent_images (agent, digest) SELECT id, '' FROM agents WHERE state < 7;

CREATE TRIGGER agent_images_new AFTER INSERT ON agents BEGIN
    INSERT INTO agent_images (agent, digest) VALUES (new.id, '');
END;

CREATE TRIGGER agent_images_spec AFTER UPDATE OF image_digest, spec, next ON agents BEGIN
    DELETE FROM agent_images WHERE agent = new.id;
    INSERT INTO agent_images (agent, digest) VALUES (new.id, '');
END;

CREATE TRIGGER agent_images_removed AFTER UPDATE OF state ON agents WHEN new.state >= 7 BEGIN
    DELETE FROM agent_images WHERE agent = new.id;
END;
