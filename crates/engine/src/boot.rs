//! The start of an engine: memory from the store, and the first batch.

use std::collections::{BTreeMap, HashMap, VecDeque};

use lodge_core::event::{DaemonStarted, EventBody};
use lodge_core::quarantine::Suspect;
use lodge_core::record::StoredState;
use lodge_core::{IdSource, Timestamp};

use crate::agents::{Agent, Lookups, RetryPauses, lineages};
use crate::batch::Step;
use crate::requests::Requests;
use crate::sandboxes::standalone::live::Standalones;
use crate::sessions::Session;
use crate::{Batch, DAEMON_STREAM, Engine, Host, StartEvent, StreamHead, jobs, turns};

impl Engine {
    /// Takes over the recorded state. The first batch records the start of the daemon and adopts live sandboxes.
    pub fn boot(
        loaded: StoredState,
        host: Host,
        ids: IdSource,
        version: &str,
        now: Timestamp,
    ) -> (Engine, Batch) {
        Engine::boot_with_suspects(loaded, Vec::new(), host, ids, version, now)
    }

    /// As [`Engine::boot`], and quarantines work that killed earlier daemons.
    pub fn boot_with_suspects(
        loaded: StoredState,
        suspects: Vec<Suspect>,
        host: Host,
        ids: IdSource,
        version: &str,
        now: Timestamp,
    ) -> (Engine, Batch) {
        let mut engine = Engine::from_stored_state(loaded, host, ids, now);
        let body = EventBody::from(DaemonStarted { epoch: engine.epoch, version: version.to_owned() });
        engine.event(DAEMON_STREAM, body.clone());
        engine.started = Some(StartEvent { seq: engine.seq, body });
        // Before any other decision.
        engine.quarantine(suspects);
        engine.adopt_all(RetryPauses::Skip);
        engine.park_quarantined();
        engine.resume_outages();
        let batch = engine.step.take();
        (engine, batch)
    }

    /// The recorded state as memory, without a decision.
    pub(crate) fn from_stored_state(
        loaded: StoredState,
        host: Host,
        ids: IdSource,
        now: Timestamp,
    ) -> Engine {
        let mut engine = Engine {
            step: Step::at(now),
            epoch: loaded.epoch,
            started: None,
            host,
            ids,
            seq: loaded.seq,
            streams: loaded
                .streams
                .into_iter()
                .map(|(stream, head)| (stream, StreamHead { head, seq: 0 }))
                .collect(),
            agents: BTreeMap::new(),
            names: loaded.names.into_iter().map(String::into_boxed_str).collect(),
            resting_images: loaded.resting_images,
            lookups: Lookups::default(),
            sessions: HashMap::new(),
            turns: HashMap::new(),
            working: 0,
            execs: HashMap::new(),
            jobs: jobs::LiveJobs::default(),
            standalones: Standalones::default(),
            requests: Requests::default(),
            idle_sessions: VecDeque::new(),
            outages: turns::outages::Outages::default(),
            last_uid: loaded.last_uid,
            tokens: loaded.tokens.into_iter().map(|row| (row.id.clone(), row)).collect(),
            image_refs: loaded.image_refs.into_iter().map(|row| (row.reference.clone(), row)).collect(),
            images: loaded.images.into_iter().map(|held| (held.digest.clone(), held)).collect(),
            asks: 0,
            quarantine: loaded.quarantine.into_iter().map(|row| (row.id.clone(), row)).collect(),
            quarantined: Vec::new(),
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
            engine.names.insert(row.name.as_str().into());
            engine.streams.entry(row.id.to_string()).or_default();
            engine.agents.insert(row.id.clone(), Agent::new(row, lineage));
        }
        for live in loaded.turns {
            engine.take_over(live);
        }
        engine.restore_outages();
        for row in loaded.jobs {
            engine.jobs.insert(row, 0);
        }
        for row in loaded.sandboxes {
            engine.streams.entry(row.id.to_string()).or_default();
            engine.standalones.insert(row);
        }
        for row in loaded.execs {
            engine.standalones.insert_exec(row);
        }
        engine
    }
}
