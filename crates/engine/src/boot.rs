//! The beginning of an engine: memory from what was recorded, and the first batch.

use std::collections::{BTreeMap, HashMap, VecDeque};

use lodge_core::event::{DaemonStarted, EventBody};
use lodge_core::quarantine::Suspect;
use lodge_core::record::Loaded;
use lodge_core::{IdSource, Timestamp};

use crate::agents::{Agent, Pauses, lineages};
use crate::batch::Step;
use crate::requests::Requests;
use crate::sessions::Session;
use crate::{Batch, DAEMON_STREAM, Engine, Host, StartEvent, jobs};

impl Engine {
    /// Takes over what was recorded. The first batch says that the daemon started and adopts what may live.
    pub fn boot(loaded: Loaded, host: Host, ids: IdSource, version: &str, now: Timestamp) -> (Engine, Batch) {
        Engine::boot_without(loaded, Vec::new(), host, ids, version, now)
    }

    /// As [`Engine::boot`], and sets work aside that killed earlier daemons.
    pub fn boot_without(
        loaded: Loaded,
        suspects: Vec<Suspect>,
        host: Host,
        ids: IdSource,
        version: &str,
        now: Timestamp,
    ) -> (Engine, Batch) {
        let mut engine = Engine::over(loaded, host, ids, now);
        let body = EventBody::from(DaemonStarted { epoch: engine.epoch, version: version.to_owned() });
        engine.event(DAEMON_STREAM, body.clone());
        engine.started = Some(StartEvent { seq: engine.seq, body });
        // Before anything is begun.
        engine.quarantine(suspects);
        engine.adopt_all(Pauses::Skip);
        engine.park_quarantined();
        let batch = engine.step.take();
        (engine, batch)
    }

    /// The memory of what was recorded, and of nothing else.
    pub(crate) fn over(loaded: Loaded, host: Host, ids: IdSource, now: Timestamp) -> Engine {
        let mut engine = Engine {
            step: Step::at(now),
            epoch: loaded.epoch,
            started: None,
            host,
            ids,
            seq: loaded.seq,
            streams: loaded.streams,
            agents: BTreeMap::new(),
            names: HashMap::new(),
            sessions: HashMap::new(),
            turns: HashMap::new(),
            working: 0,
            execs: HashMap::new(),
            jobs: jobs::Jobs::default(),
            requests: Requests::default(),
            idle_sessions: VecDeque::new(),
            last_uid: loaded.last_uid,
            tokens: loaded.tokens.into_iter().map(|row| (row.id.clone(), row)).collect(),
            image_refs: loaded.image_refs.into_iter().map(|row| (row.reference.clone(), row)).collect(),
            images: loaded.images.into_iter().map(|held| (held.digest.clone(), held)).collect(),
            asks: 0,
            quarantine: loaded.quarantine.into_iter().map(|row| (row.id.clone(), row)).collect(),
            quarantine_seqs: BTreeMap::new(),
        };
        for fact in loaded.sessions {
            engine.sessions.insert(fact.row.id.clone(), Session::from_fact(&fact));
        }
        let mut lineages: HashMap<_, _> =
            loaded.lineages.into_iter().map(|lineage| (lineage.id.clone(), lineage)).collect();
        for row in loaded.agents {
            let lineage = lineages.remove(&row.lineage);
            let lineage = lineage.unwrap_or_else(|| {
                lineages::new_lineage(row.lineage.clone(), row.id.clone(), row.created_at)
            });
            engine.names.insert(row.name.clone(), row.id.clone());
            engine.agents.insert(row.id.clone(), Agent::new(row, lineage));
        }
        for live in loaded.turns {
            engine.take_over(live);
        }
        for row in loaded.jobs {
            engine.jobs.insert(row, 0);
        }
        engine
    }
}
