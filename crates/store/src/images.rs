//! Images and their names.

use lodge_core::Timestamp;
use lodge_core::record::{ImageRecord, ImageRefRow};
use prost::Message;
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::read::{Reader, Result};
use crate::rows;

/// Digests that one beginning may find, before it says too little.
const FOUND_MAX: u32 = 5;
/// Agents that are named for one image.
const AGENTS_SHOWN: u32 = 100;

/// An image without its contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageSummary {
    pub digest: String,
    /// The name it was built with first.
    pub name: String,
    /// In order of their text.
    pub refs: Vec<ImageRefRow>,
    pub bytes: u64,
    /// Agents that have it.
    pub agents: u64,
    /// When it got its newest name, or its first agent if it has none.
    pub at: Timestamp,
}

impl Reader {
    /// What an image is made of; absent when it is gone.
    pub fn image(&self, digest: &str) -> Result<Option<ImageRecord>> {
        self.with(|c| {
            c.prepare_cached("SELECT record FROM images WHERE digest = ?1 AND gone = 0")?
                .query_row([digest], |row| {
                    let bytes = row.get_ref(0)?.as_blob()?;
                    ImageRecord::decode(bytes).map_err(|cause| {
                        rusqlite::Error::FromSqlConversionFailure(
                            0,
                            rusqlite::types::Type::Blob,
                            Box::new(cause),
                        )
                    })
                })
                .optional()
        })
    }

    pub fn image_ref(&self, reference: &str) -> Result<Option<ImageRefRow>> {
        self.with(|c| {
            c.prepare_cached("SELECT * FROM image_refs WHERE ref = ?1")?
                .query_row([reference], image_ref)
                .optional()
        })
    }

    /// The digests that are this one or begin so, a few at most.
    pub fn find_digests(&self, given: &str) -> Result<Vec<String>> {
        self.with(|c| {
            c.prepare_cached(
                "SELECT digest FROM images WHERE digest >= ?1 AND digest < ?1 || '{' AND gone = 0 LIMIT ?2",
            )?
            .query_map(params![given, FOUND_MAX], |row| row.get(0))?
            .collect()
        })
    }

    /// A page of images, in the order of their digests.
    pub fn images(&self, after: Option<&str>, limit: u32) -> Result<Vec<ImageSummary>> {
        self.with(|c| {
            let found = c
                .prepare_cached(
                    "SELECT digest, name, length(record) AS bytes FROM images \
                     WHERE digest > ?1 AND gone = 0 ORDER BY digest LIMIT ?2",
                )?
                .query_map(params![after.unwrap_or(""), limit], bare)?
                .collect::<rusqlite::Result<Vec<_>>>()?;
            filled(c, found)
        })
    }

    pub fn image_summary(&self, digest: &str) -> Result<Option<ImageSummary>> {
        self.with(|c| {
            let found = c
                .prepare_cached(
                    "SELECT digest, name, length(record) AS bytes FROM images WHERE digest = ?1 AND gone = 0",
                )?
                .query_row([digest], bare)
                .optional()?;
            Ok(filled(c, Vec::from_iter(found))?.pop())
        })
    }

    /// The names of agents that have an image, or will have it; not more than a person reads.
    pub fn agents_of_image(&self, digest: &str) -> Result<Vec<String>> {
        self.with(|c| {
            c.prepare_cached(
                "SELECT name FROM agents WHERE state < 7 AND (image_digest = ?1 OR next_digest = ?1) \
                 ORDER BY name LIMIT ?2",
            )?
            .query_map(params![digest, AGENTS_SHOWN], |row| row.get(0))?
            .collect()
        })
    }
}

fn bare(row: &Row<'_>) -> rusqlite::Result<ImageSummary> {
    Ok(ImageSummary {
        digest: row.get("digest")?,
        name: row.get("name")?,
        refs: Vec::new(),
        bytes: rows::unsigned(row, "bytes")?,
        agents: 0,
        at: Timestamp::from_ms(0),
    })
}

/// Images, in the order of their digests, with their names and users: one look at each table, however many they are.
fn filled(c: &Connection, mut images: Vec<ImageSummary>) -> rusqlite::Result<Vec<ImageSummary>> {
    let (Some(first), Some(last)) = (images.first(), images.last()) else { return Ok(images) };
    let span = [first.digest.clone(), last.digest.clone()];
    let mut refs =
        c.prepare_cached("SELECT * FROM image_refs WHERE digest BETWEEN ?1 AND ?2 ORDER BY ref")?;
    for row in refs.query_map([&span[0], &span[1]], image_ref)? {
        let row = row?;
        if let Ok(place) = images.binary_search_by(|image| image.digest.cmp(&row.digest)) {
            images[place].refs.push(row);
        }
    }
    let mut users = c.prepare_cached(
        "SELECT digest, count(*) AS agents, min(created_at) AS first FROM \
         (SELECT image_digest AS digest, created_at FROM agents WHERE state < 7 UNION ALL \
          SELECT next_digest, created_at FROM agents WHERE state < 7 AND next_digest IS NOT image_digest) \
         WHERE digest BETWEEN ?1 AND ?2 GROUP BY digest",
    )?;
    let mut found = users.query([&span[0], &span[1]])?;
    while let Some(row) = found.next()? {
        let digest: String = row.get("digest")?;
        if let Ok(place) = images.binary_search_by(|image| image.digest.cmp(&digest)) {
            images[place].agents = rows::unsigned(row, "agents")?;
            images[place].at = Timestamp::from_ms(row.get("first")?);
        }
    }
    for image in &mut images {
        image.at = image.refs.iter().map(|row| row.at).max().unwrap_or(image.at);
    }
    Ok(images)
}

fn image_ref(row: &Row<'_>) -> rusqlite::Result<ImageRefRow> {
    Ok(ImageRefRow {
        reference: row.get("ref")?,
        digest: row.get("digest")?,
        at: Timestamp::from_ms(row.get("at")?),
    })
}

pub(crate) fn refs(c: &Connection) -> rusqlite::Result<Vec<ImageRefRow>> {
    c.prepare("SELECT * FROM image_refs ORDER BY ref")?.query_map([], image_ref)?.collect()
}

/// Records an image once. One that was gone is there again.
pub(crate) fn put(tx: &Connection, digest: &str, name: &str, record: &ImageRecord) -> rusqlite::Result<()> {
    let known = tx
        .prepare_cached("SELECT 1 FROM images WHERE digest = ?1 AND gone = 0")?
        .query_row([digest], |_| Ok(()))
        .optional()?;
    if known.is_some() {
        // Contents can be large: they are written once.
        return Ok(());
    }
    tx.prepare_cached(
        "INSERT INTO images (digest, name, record) VALUES (?1, ?2, ?3) \
         ON CONFLICT (digest) DO UPDATE SET name = excluded.name, record = excluded.record, gone = 0",
    )?
    .execute(params![digest, name, record.encode_to_vec()])?;
    Ok(())
}

pub(crate) fn put_ref(tx: &Connection, row: &ImageRefRow) -> rusqlite::Result<()> {
    tx.prepare_cached(
        "INSERT INTO image_refs (ref, digest, at) VALUES (?1, ?2, ?3) \
         ON CONFLICT (ref) DO UPDATE SET digest = excluded.digest, at = excluded.at",
    )?
    .execute(params![row.reference, row.digest, row.at.ms()])?;
    Ok(())
}

pub(crate) fn remove_ref(tx: &Connection, reference: &str) -> rusqlite::Result<()> {
    tx.prepare_cached("DELETE FROM image_refs WHERE ref = ?1")?.execute([reference])?;
    Ok(())
}

/// Drops the contents of an image. Its row stays as long as a removed agent's row names it.
pub(crate) fn remove(tx: &Connection, digest: &str) -> rusqlite::Result<()> {
    let named = "EXISTS (SELECT 1 FROM agents WHERE image_digest = ?1 OR next_digest = ?1)";
    tx.prepare_cached(&format!("DELETE FROM images WHERE digest = ?1 AND NOT {named}"))?.execute([digest])?;
    tx.prepare_cached("UPDATE images SET gone = 1, record = x'' WHERE digest = ?1")?.execute([digest])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{MIGRATIONS, migrate};

    #[test]
    fn images_of_the_release_before_keep_their_newest_names() {
        let mut connection = Connection::open_in_memory().unwrap();
        for migration in &MIGRATIONS[..2] {
            connection.execute_batch(migration).unwrap();
        }
        let before = "INSERT INTO images (digest, name, record) VALUES \
            ('sha256:2', 'a:latest', x''), ('sha256:1', 'a:latest', x''), ('sha256:3', 'b:latest', x''); \
            INSERT INTO agents (id, name, image, image_digest, lineage, sandbox, state, incarnation, created_at, spec) \
            VALUES ('agt_1', 'a', 'a:latest', 'sha256:1', 'l', 's', 3, 1, 42, x'')";
        connection.execute_batch(before).unwrap();
        let tx = connection.transaction().unwrap();
        migrate(&tx, 2).unwrap();
        tx.commit().unwrap();
        let found = refs(&connection).unwrap();
        let found: Vec<_> =
            found.iter().map(|row| (row.reference.as_str(), row.digest.as_str(), row.at.ms())).collect();
        assert_eq!(found, [("a:latest", "sha256:1", 42), ("b:latest", "sha256:3", 0)]);
    }
}
