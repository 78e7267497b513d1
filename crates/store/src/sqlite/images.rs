//! Images and their names.

use lodge_core::Timestamp;
use lodge_core::record::{
    BinImageRecord, ImageContents, ImageFact, ImageKind, ImageRecord, ImageRefRow, ImageRow, ImageState,
};
use prost::Message;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::snapshot::SqliteSnapshot;
use crate::reads::{ID_MATCHES_MAX, ImageReads, ImageSummary, Result};
use crate::sqlite::codes::{IMAGE_AGENT, IMAGE_BIN, sql};
use crate::sqlite::rows;

/// Agents that are listed for one image.
const AGENTS_SHOWN: u32 = 100;

const PAGE: &str = "SELECT digest, kind, name, bytes, complete FROM images \
    WHERE kind = ?1 AND digest > ?2 AND gone = 0 ORDER BY digest LIMIT ?3";
/// With what each is, which is small for tools: looked for one by one, they take five times as long as their page.
const BINS: &str = sql!(
    "SELECT digest, kind, name, bytes, complete, record FROM images \
    WHERE kind = ",
    IMAGE_BIN,
    " AND digest > ?1 AND gone = 0 ORDER BY digest LIMIT ?2"
);
/// From the index alone, like the next one: the columns follow records, which may be large.
const HELD: &str =
    "SELECT digest, kind, bytes, complete FROM images INDEXED BY images_kind WHERE gone = 0 ORDER BY digest";
const REFS: &str =
    "SELECT * FROM image_refs INDEXED BY image_refs_digest WHERE digest BETWEEN ?1 AND ?2 ORDER BY ref";
/// Includes images that other images need and that are not recorded yet: a pulling agent gets its tools one after the
/// other.
const DIGESTS: &str = "SELECT digest FROM images INDEXED BY images_kind WHERE gone = 0 \
    UNION SELECT needs FROM image_needs ORDER BY 1";

impl ImageReads for SqliteSnapshot<'_> {
    fn image(&self, digest: &str) -> Result<Option<ImageRecord>> {
        self.with(|c| {
            c.prepare_cached(sql!(
                "SELECT record FROM images WHERE digest = ?1 AND kind = ",
                IMAGE_AGENT,
                " AND gone = 0"
            ))?
            .query_row([digest], decoded)
            .optional()
        })
    }

    fn bin_image(&self, digest: &str) -> Result<Option<BinImageRecord>> {
        self.with(|c| {
            c.prepare_cached(sql!(
                "SELECT record FROM images WHERE digest = ?1 AND kind = ",
                IMAGE_BIN,
                " AND gone = 0"
            ))?
            .query_row([digest], decoded)
            .optional()
        })
    }

    fn image_digests(&self) -> Result<Vec<String>> {
        self.with(|c| c.prepare_cached(DIGESTS)?.query_map([], |row| row.get(0))?.collect())
    }

    fn image_ref(&self, reference: &str) -> Result<Option<ImageRefRow>> {
        self.with(|c| {
            c.prepare_cached("SELECT * FROM image_refs WHERE ref = ?1")?
                .query_row([reference], image_ref)
                .optional()
        })
    }

    fn image_refs(&self) -> Result<Vec<ImageRefRow>> {
        self.with(refs)
    }

    fn image_tags(&self, name: &str) -> Result<Vec<ImageRefRow>> {
        self.with(|c| {
            c.prepare_cached(
                "SELECT * FROM image_refs WHERE ref >= ?1 || ':' AND ref < ?1 || ';' AND instr(substr(ref, length(?1) + 2), '/') = 0 \
                 ORDER BY ref",
            )?
            .query_map([name], image_ref)?
            .collect()
        })
    }

    fn find_digests(&self, given: &str) -> Result<Vec<String>> {
        self.with(|c| {
            c.prepare_cached(
                "SELECT digest FROM images WHERE digest >= ?1 AND digest < ?1 || '{' AND gone = 0 LIMIT ?2",
            )?
            .query_map(params![given, ID_MATCHES_MAX], |row| row.get(0))?
            .collect()
        })
    }

    fn images(&self, kind: ImageKind, after: Option<&str>, limit: u32) -> Result<Vec<ImageSummary>> {
        self.with(|c| {
            let found = c
                .prepare_cached(PAGE)?
                .query_map(params![kind.code(), after.unwrap_or(""), limit], image_summary_row)?
                .collect::<rusqlite::Result<Vec<_>>>()?;
            with_names_and_users(c, found)
        })
    }

    fn bins(&self, after: Option<&str>, limit: u32) -> Result<Vec<(ImageSummary, BinImageRecord)>> {
        self.with(|c| {
            let (found, records): (Vec<_>, Vec<_>) = c
                .prepare_cached(BINS)?
                .query_map(params![after.unwrap_or(""), limit], |row| {
                    Ok((image_summary_row(row)?, rows::message(row, "record")?))
                })?
                .collect::<rusqlite::Result<Vec<_>>>()?
                .into_iter()
                .unzip();
            Ok(with_names_and_users(c, found)?.into_iter().zip(records).collect())
        })
    }

    fn image_summary(&self, digest: &str) -> Result<Option<ImageSummary>> {
        self.with(|c| {
            let found = c
                .prepare_cached(
                    "SELECT digest, kind, name, bytes, complete FROM images WHERE digest = ?1 AND gone = 0",
                )?
                .query_row([digest], image_summary_row)
                .optional()?;
            Ok(with_names_and_users(c, Vec::from_iter(found))?.pop())
        })
    }

    fn image_kind(&self, digest: &str) -> Result<Option<(ImageKind, ImageState)>> {
        self.with(|c| {
            c.prepare_cached("SELECT kind, complete FROM images WHERE digest = ?1 AND gone = 0")?
                .query_row([digest], |row| Ok((kind(row)?, state(row)?)))
                .optional()
        })
    }

    fn agents_of_image(&self, digest: &str) -> Result<Vec<String>> {
        self.with(|c| {
            c.prepare_cached(
                "SELECT name FROM agent_images JOIN agents ON id = agent WHERE digest = ?1 ORDER BY name LIMIT ?2",
            )?
            .query_map(params![digest, AGENTS_SHOWN], |row| row.get(0))?
            .collect()
        })
    }
}

fn image_summary_row(row: &Row<'_>) -> rusqlite::Result<ImageSummary> {
    Ok(ImageSummary {
        digest: row.get("digest")?,
        kind: kind(row)?,
        name: row.get("name")?,
        refs: Vec::new(),
        bytes: rows::unsigned(row, "bytes")?,
        agents: 0,
        needed_by: 0,
        state: state(row)?,
        at: Timestamp::from_ms(0),
    })
}

/// Images, ordered by digest, with their names and users: one query per table, for any number of images.
fn with_names_and_users(
    c: &Connection,
    mut images: Vec<ImageSummary>,
) -> rusqlite::Result<Vec<ImageSummary>> {
    each(c, REFS, &mut images, |image, row| {
        image.refs.push(image_ref(row)?);
        Ok(())
    })?;
    count_agents(c, &mut images)?;
    let needs = "SELECT needs AS digest, count(*) AS images FROM image_needs WHERE needs BETWEEN ?1 AND ?2 GROUP BY needs";
    each(c, needs, &mut images, |image, row| {
        image.needed_by = rows::unsigned(row, "images")?;
        Ok(())
    })?;
    let came = "SELECT needs AS digest, min(at) AS at FROM image_needs JOIN image_refs ON image_refs.digest = image \
         WHERE needs BETWEEN ?1 AND ?2 GROUP BY needs";
    each(c, came, &mut images, |image, row| {
        image.at = Timestamp::from_ms(row.get("at")?);
        Ok(())
    })?;
    for image in &mut images {
        image.at = image.refs.iter().map(|row| row.at).max().unwrap_or(image.at);
    }
    Ok(images)
}

/// The agents that have them, as their own or for one of their tools.
fn count_agents(c: &Connection, images: &mut [ImageSummary]) -> rusqlite::Result<()> {
    let agents = "SELECT digest, count(*) AS agents, min(created_at) AS first FROM agent_images JOIN agents ON id = agent \
        WHERE digest BETWEEN ?1 AND ?2 GROUP BY digest";
    each(c, agents, images, |image, row| {
        image.agents = rows::unsigned(row, "agents")?;
        image.at = Timestamp::from_ms(row.get("first")?);
        Ok(())
    })
}

/// Reads rows about all images of a range, and assigns them.
fn each(
    c: &Connection,
    sql: &str,
    images: &mut [ImageSummary],
    put: impl Fn(&mut ImageSummary, &Row<'_>) -> rusqlite::Result<()>,
) -> rusqlite::Result<()> {
    let (Some(first), Some(last)) = (images.first(), images.last()) else { return Ok(()) };
    let span = [first.digest.clone(), last.digest.clone()];
    let mut statement = c.prepare_cached(sql)?;
    let mut found = statement.query([&span[0], &span[1]])?;
    while let Some(row) = found.next()? {
        let digest: String = row.get("digest")?;
        if let Ok(place) = images.binary_search_by(|image| image.digest.cmp(&digest)) {
            put(&mut images[place], row)?;
        }
    }
    Ok(())
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

/// Records an image. A removed image is present again; the record of a complete one does not change.
pub(crate) fn put(tx: &Connection, row: &ImageRow) -> rusqlite::Result<()> {
    let known = tx
        .prepare_cached("SELECT 1 FROM images WHERE digest = ?1 AND gone = 0 AND complete >= ?2")?
        .query_row(params![row.digest, complete(row.state)], |_| Ok(()))
        .optional()?;
    if known.is_some() {
        return Ok(());
    }
    let record = match &row.contents {
        ImageContents::Agent(record) => record.encode_to_vec(),
        ImageContents::Bin(record) => record.encode_to_vec(),
    };
    tx.prepare_cached(
        "INSERT INTO images (digest, name, record, kind, bytes, complete) VALUES (?1, ?2, ?3, ?4, ?5, ?6) \
         ON CONFLICT (digest) DO UPDATE SET record = excluded.record, kind = excluded.kind, bytes = excluded.bytes, \
         complete = excluded.complete, gone = 0",
    )?
    .execute(params![
        row.digest,
        row.name,
        record,
        row.contents.kind().code(),
        i64::try_from(row.bytes).unwrap_or(i64::MAX),
        complete(row.state)
    ])?;
    let mut needs = tx.prepare_cached("INSERT OR IGNORE INTO image_needs (image, needs) VALUES (?1, ?2)")?;
    for need in row.contents.needs() {
        needs.execute(params![row.digest, need])?;
    }
    Ok(())
}

fn complete(state: ImageState) -> i64 {
    match state {
        ImageState::Announced => 0,
        ImageState::Complete => 1,
    }
}

fn state(row: &Row<'_>) -> rusqlite::Result<ImageState> {
    let complete: i64 = row.get("complete")?;
    Ok(if complete == 1 { ImageState::Complete } else { ImageState::Announced })
}

fn kind(row: &Row<'_>) -> rusqlite::Result<ImageKind> {
    let code = row.get("kind")?;
    ImageKind::from_code(code).ok_or(rusqlite::Error::IntegralValueOutOfRange(0, code))
}

fn decoded<M: Message + Default>(row: &Row<'_>) -> rusqlite::Result<M> {
    M::decode(row.get_ref(0)?.as_blob()?).map_err(|cause| {
        rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Blob, Box::new(cause))
    })
}

/// The engine's facts about all images.
pub(crate) fn image_facts(c: &Connection) -> rusqlite::Result<Vec<ImageFact>> {
    let mut images: Vec<ImageFact> = c
        .prepare(HELD)?
        .query_map([], |row| {
            let (digest, bytes) = (row.get("digest")?, rows::unsigned(row, "bytes")?);
            Ok(ImageFact { digest, kind: kind(row)?, bytes, state: state(row)?, needs: Vec::new() })
        })?
        .collect::<rusqlite::Result<_>>()?;
    let mut needs = c.prepare("SELECT image, needs FROM image_needs ORDER BY image, needs")?;
    let mut found = needs.query([])?;
    while let Some(row) = found.next()? {
        let image: String = row.get("image")?;
        if let Ok(place) = images.binary_search_by(|held| held.digest.cmp(&image)) {
            images[place].needs.push(row.get("needs")?);
        }
    }
    Ok(images)
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
    tx.prepare_cached("DELETE FROM image_needs WHERE image = ?1")?.execute([digest])?;
    tx.prepare_cached(&format!("DELETE FROM images WHERE digest = ?1 AND NOT {named}"))?.execute([digest])?;
    tx.prepare_cached("UPDATE images SET gone = 1, record = x'' WHERE digest = ?1")?.execute([digest])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::schema::{MIGRATIONS, migrate};

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

    fn plan(c: &Connection, sql: &str) -> String {
        let mut plan = c.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let unbound = vec![rusqlite::types::Null; plan.parameter_count()];
        let lines = plan
            .query_map(rusqlite::params_from_iter(unbound), |row| row.get::<_, String>("detail"))
            .unwrap();
        lines.map(std::result::Result::unwrap).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn listings_of_a_kind_and_what_an_engine_holds_are_read_from_an_index() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("daemon.db");
        drop(crate::sqlite::open(&path, &[7; 64]).unwrap());
        let c = Connection::open(&path).unwrap();
        for sql in [PAGE, BINS] {
            let page = plan(&c, sql);
            assert!(page.contains("INDEX images_kind (kind=? AND digest>?)"), "{page}");
            assert!(!page.contains("TEMP B-TREE") && !page.contains("SCAN"), "{page}");
        }
        for sql in [HELD, DIGESTS] {
            let plan = plan(&c, sql);
            assert!(plan.contains("COVERING INDEX images_kind"), "{plan}");
        }
    }

    #[test]
    fn the_names_of_a_few_images_are_found_without_looking_at_those_of_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("daemon.db");
        drop(crate::sqlite::open(&path, &[7; 64]).unwrap());
        let c = Connection::open(&path).unwrap();
        // The condition that the database checks when an image is removed.
        for sql in [REFS, "SELECT 1 FROM image_refs WHERE digest = ?1"] {
            let plan = plan(&c, sql);
            assert!(plan.contains("INDEX image_refs_digest (digest") && !plan.contains("SCAN"), "{plan}");
        }
    }
}
