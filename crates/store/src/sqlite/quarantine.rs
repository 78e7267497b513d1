//! Work in quarantine.

use lodge_core::quarantine::{QuarantineRow, WorkKind};
use lodge_core::record::TurnRow;
use lodge_core::{AgentId, TurnId, WorkId};
use rusqlite::{Connection, OptionalExtension, params};

use super::snapshot::SqliteSnapshot;
use crate::reads::{QuarantineReads, Result};
use crate::sqlite::codes::{TURN_OVER, WORK_MODEL_CALL, WORK_SCHEMA_CHECK, sql};
use crate::sqlite::rows;

impl QuarantineReads for SqliteSnapshot<'_> {
    fn quarantine(&self) -> Result<Vec<QuarantineRow>> {
        self.with(all)
    }
}

pub(crate) fn all(c: &Connection) -> rusqlite::Result<Vec<QuarantineRow>> {
    c.prepare_cached("SELECT * FROM quarantine ORDER BY id")?.query_map([], rows::quarantine)?.collect()
}

/// The work of an agent: of its turns, and its pull.
pub(crate) fn of_agent(all: &[QuarantineRow], agent: &AgentId) -> Vec<QuarantineRow> {
    all.iter().filter(|row| row.agent.as_ref() == Some(agent)).cloned().collect()
}

/// The work of these turns.
pub(crate) fn of_turns<'a>(
    all: &[QuarantineRow],
    turns: impl Iterator<Item = &'a TurnId> + Clone,
) -> Vec<QuarantineRow> {
    all.iter().filter(|row| turns.clone().any(|turn| is_of_turn(row, turn))).cloned().collect()
}

fn is_of_turn(row: &QuarantineRow, turn: &TurnId) -> bool {
    match row.work.kind {
        WorkKind::ModelCall | WorkKind::SchemaCheck => row.work.subject == turn.as_str(),
        WorkKind::Pull | WorkKind::Request => false,
    }
}

/// The work that a turn waits for: its own, or that of a turn before it in its session.
pub(crate) fn before(c: &Connection, turn: &TurnRow) -> rusqlite::Result<Option<QuarantineRow>> {
    c.prepare_cached(sql!(
        "SELECT quarantine.* FROM quarantine CROSS JOIN turns ON turns.id = quarantine.subject \
         WHERE quarantine.kind IN (",
        WORK_MODEL_CALL,
        ", ",
        WORK_SCHEMA_CHECK,
        ") AND turns.session = ?1 AND turns.state < ",
        TURN_OVER,
        " AND turns.number <= ?2 \
         ORDER BY turns.number DESC LIMIT 1"
    ))?
    .query_row(params![turn.session.as_str(), turn.number], rows::quarantine)
    .optional()
}

pub(crate) fn put(tx: &Connection, row: &QuarantineRow) -> rusqlite::Result<()> {
    tx.prepare_cached(
        "INSERT INTO quarantine (id, kind, subject, agent, detail, deaths, since) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?
    .execute(params![
        row.id.as_str(),
        row.work.kind.code(),
        row.work.subject,
        row.agent.as_ref().map(lodge_core::AgentId::as_str),
        row.detail,
        row.deaths,
        row.since.ms(),
    ])?;
    Ok(())
}

pub(crate) fn remove(tx: &Connection, id: &WorkId) -> rusqlite::Result<()> {
    tx.prepare_cached("DELETE FROM quarantine WHERE id = ?1")?.execute([id.as_str()])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use lodge_core::quarantine::{Work, WorkKind};
    use lodge_core::record::{WorkWrite, Write};
    use lodge_core::{IdSource, Timestamp};

    use super::*;

    #[test]
    fn what_is_set_aside_is_loaded_again_until_it_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("daemon.db");
        let mut opened = crate::sqlite::open(&path, &[1; 64]).unwrap();
        let at = Timestamp::from_ms(7);
        let mut ids = IdSource::new(1);
        let mut row = |kind, agent: Option<&str>| QuarantineRow {
            id: WorkId::new(&mut ids, at),
            work: Work { kind, subject: "trn_1".into() },
            agent: agent.map(|agent| agent.parse().unwrap()),
            detail: "x".into(),
            deaths: 3,
            since: at,
        };
        let (call, request) = (row(WorkKind::ModelCall, Some("agt_1")), row(WorkKind::Request, None));
        let writes = [
            Write::Work(WorkWrite::Quarantined(call.clone())),
            Write::Work(WorkWrite::Quarantined(request.clone())),
        ];
        opened.writer.commit(&writes, ()).unwrap().into_inner();
        let mut both = vec![call.clone(), request.clone()];
        both.sort_by(|a, b| a.id.cmp(&b.id));
        assert_eq!(opened.reader.here(|snapshot| snapshot.quarantine()).unwrap(), both);
        drop(opened);
        let mut opened = crate::sqlite::open(&path, &[1; 64]).unwrap();
        assert_eq!(opened.loaded.quarantine, both);
        opened.writer.commit(&[Write::Work(WorkWrite::Released { id: call.id })], ()).unwrap().into_inner();
        assert_eq!(opened.reader.here(|snapshot| snapshot.quarantine()).unwrap(), [request]);
    }
}
