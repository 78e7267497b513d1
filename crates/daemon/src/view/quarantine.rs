//! Quarantined work, as clients see it.

use lodge_core::quarantine::QuarantineRow;
use lodge_proto::QuarantineView;

pub fn quarantined(row: &QuarantineRow, status: &str) -> QuarantineView {
    QuarantineView {
        id: row.id.to_string(),
        kind: row.work.kind.word().to_owned(),
        status: status.to_owned(),
        agent: row.agent.as_ref().map(ToString::to_string),
        turn: lodge_engine::turn_of(&row.work).map(|turn| turn.to_string()),
        detail: Some(row.detail.clone()).filter(|detail| !detail.is_empty()),
        deaths: row.deaths,
        since: row.since.to_string(),
    }
}
