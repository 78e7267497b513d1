//! Standalone sandboxes and their execs: ids, states, races, and what a restart continues.

use lodge_core::job::JobStreamBytes;
use lodge_core::sandbox::{
    SandboxExecRow, SandboxExecState, SandboxFact, SandboxRecord, SandboxRow, SandboxState, SandboxWrite,
};
use lodge_core::{SandboxId, sandbox::ExecFailReason};

use super::*;
use crate::{
    ExecOrder, ExecOutcome, NewExec, NewSandbox, SandboxCommand, SandboxExecEnd, SandboxLookup,
    StandaloneEffect, StandaloneObservation, StartMode,
};

/// An engine, and what a store would hold of sandboxes.
struct SandboxWorld {
    world: EngineWorld,
    rows: BTreeMap<SandboxId, SandboxRow>,
    execs: BTreeMap<ExecId, SandboxExecRow>,
}

fn named(given: &str) -> SandboxId {
    given.parse().unwrap()
}

impl SandboxWorld {
    fn new() -> SandboxWorld {
        SandboxWorld { world: EngineWorld::new(), rows: BTreeMap::new(), execs: BTreeMap::new() }
    }

    /// Asks, and answers lookups from what was stored.
    fn ask(&mut self, command: SandboxCommand) -> Batch {
        let batch = self.world.ask(None, Command::Sandbox(command));
        self.keep(&batch);
        for effect in &batch.early {
            let Effect::LookUpSandbox { ask, sandbox, exec } = effect else { continue };
            let found = self.look_up(sandbox, exec.as_ref());
            return self.see(StandaloneObservation::LookedUp { ask: *ask, found });
        }
        batch
    }

    fn look_up(&self, sandbox: &SandboxId, exec: Option<&ExecId>) -> SandboxLookup {
        let fact = self.rows.get(sandbox).map(|row| Box::new(SandboxFact { row: row.clone(), head: 9 }));
        let exec_is_taken = exec.is_some_and(|exec| self.execs.contains_key(exec));
        SandboxLookup::Read { sandbox: fact, exec_is_taken }
    }

    fn see(&mut self, seen: StandaloneObservation) -> Batch {
        let batch = self.world.see(Observation::Standalone(seen));
        self.keep(&batch);
        batch
    }

    fn keep(&mut self, batch: &Batch) {
        for write in &batch.writes {
            let Write::Sandbox(write) = write else { continue };
            match write {
                SandboxWrite::New(row) => {
                    assert!(
                        self.rows.insert(row.id.clone(), row.as_ref().clone()).is_none(),
                        "created twice"
                    );
                }
                SandboxWrite::Progress(row) => {
                    self.rows.insert(row.id.clone(), row.as_ref().clone());
                }
                SandboxWrite::NewExec { row, .. } => {
                    assert!(self.execs.insert(row.id.clone(), row.as_ref().clone()).is_none(), "run twice");
                }
                SandboxWrite::ExecProgress { id, progress } => {
                    self.execs.get_mut(id).unwrap().progress = progress.as_ref().clone();
                }
            }
        }
    }

    /// Everything is on disk.
    fn flush(&mut self) {
        self.world.see(Observation::Settled { requests: 0, seq: self.world.engine.seq, rest: true });
    }

    fn create(&mut self, given: &str) -> Batch {
        let new = NewSandbox { id: Some(named(given)), record: SandboxRecord::default() };
        self.ask(SandboxCommand::Create(Box::new(new)))
    }

    fn ready(&mut self, given: &str) {
        self.create(given);
        self.started(given);
    }

    fn started(&mut self, given: &str) -> Batch {
        let (sandbox, incarnation) = (named(given), self.rows[&named(given)].incarnation);
        self.see(StandaloneObservation::Started { sandbox, incarnation })
    }

    fn down(&mut self, given: &str) -> Batch {
        let (sandbox, incarnation) = (named(given), self.rows[&named(given)].incarnation);
        self.see(StandaloneObservation::Down { sandbox, incarnation })
    }

    fn run(&mut self, sandbox: &str, id: Option<&str>) -> Batch {
        self.ask(SandboxCommand::RunExec(Box::new(NewExec {
            sandbox: named(sandbox),
            id: id.map(|id| id.parse().unwrap()),
            command: vec!["make".into()],
            cwd: None,
            env: BTreeMap::new(),
            stdin: Vec::new(),
        })))
    }

    fn ended(&mut self, exec: &ExecId, how: ExecOutcome) -> Batch {
        let bytes = JobStreamBytes::default();
        let end =
            SandboxExecEnd { how, reason: None, cause: None, detail: None, stdout: bytes, stderr: bytes };
        self.see(StandaloneObservation::ExecEnded { exec: exec.clone(), end })
    }

    fn state(&self, given: &str) -> SandboxState {
        self.rows[&named(given)].state
    }

    fn exec_state(&self, exec: &ExecId) -> SandboxExecState {
        self.execs[exec].progress.state
    }

    /// A daemon that was killed, and the next one with what was stored.
    fn restarted(self) -> (SandboxWorld, Batch) {
        let open: Vec<SandboxExecRow> =
            self.execs.values().filter(|row| row.progress.state.is_open()).cloned().collect();
        let has_open = |id: &SandboxId| open.iter().any(|row| row.sandbox == *id);
        let live = self.rows.values().filter(|row| row.state.is_live() || has_open(&row.id));
        let loaded = StoredState {
            seq: self.world.engine.seq,
            streams: heads(&self.world.engine),
            sandboxes: live.cloned().collect(),
            execs: open.clone(),
            ..StoredState::default()
        };
        let (engine, batch) = Engine::boot(loaded, host(), IdSource::new(2), "0", NOW);
        let SandboxWorld { world, rows, execs } = self;
        (SandboxWorld { world: EngineWorld { engine, ..world }, rows, execs }, batch)
    }
}

/// The effects on standalone sandboxes.
fn orders(batch: &Batch) -> Vec<&StandaloneEffect> {
    let effects = acts(batch).into_iter().filter_map(|effect| match effect {
        Effect::Standalone { what, .. } => Some(what),
        _ => None,
    });
    effects.collect()
}

fn exec_of(batch: &Batch) -> ExecId {
    reply(batch)["id"].as_str().unwrap().parse().unwrap()
}

fn is_exec_order(effect: &StandaloneEffect, wanted: &ExecOrder) -> bool {
    matches!(effect, StandaloneEffect::Exec(order) if order == wanted)
}

#[test]
fn an_id_is_taken_for_ever_also_when_its_sandbox_left_memory() {
    let mut world = SandboxWorld::new();
    world.ready("box-1");
    assert_eq!(refusal(&world.create("box-1")), "sandbox.id_taken");
    world.ask(SandboxCommand::Remove { id: named("box-1") });
    world.down("box-1");
    world.see(StandaloneObservation::Removed { sandbox: named("box-1") });
    assert_eq!(world.state("box-1"), SandboxState::Deleted);
    assert_eq!(refusal(&world.create("box-1")), "sandbox.id_taken", "in memory");
    world.flush();
    assert_eq!(world.world.engine.sizes().sandboxes, 0);
    assert_eq!(refusal(&world.create("box-1")), "sandbox.id_taken", "in the store");
    assert_eq!(refusal(&world.ask(SandboxCommand::Stop { id: named("box-1") })), "sandbox.not_found");
}

#[test]
fn two_requests_for_one_id_whose_lookups_cross_create_one_sandbox() {
    let mut world = SandboxWorld::new();
    let create = || {
        let new = NewSandbox { id: Some(named("box-1")), record: SandboxRecord::default() };
        Command::Sandbox(SandboxCommand::Create(Box::new(new)))
    };
    let first = world.world.engine.step([Input::Api { ticket: 1, request: None, command: create() }], NOW);
    let second = world.world.engine.step([Input::Api { ticket: 2, request: None, command: create() }], NOW);
    let ask = |batch: &Batch| match batch.early[..] {
        [Effect::LookUpSandbox { ask, .. }] => ask,
        ref other => panic!("{other:?}"),
    };
    let (first, second) = (ask(&first), ask(&second));
    // Both snapshots lack the sandbox. Between the answers it is created, deleted and on disk.
    let nothing = || SandboxLookup::Read { sandbox: None, exec_is_taken: false };
    world.see(StandaloneObservation::LookedUp { ask: first, found: nothing() });
    world.ask(SandboxCommand::Remove { id: named("box-1") });
    world.down("box-1");
    world.see(StandaloneObservation::Removed { sandbox: named("box-1") });
    world.flush();
    let refused = world.see(StandaloneObservation::LookedUp { ask: second, found: nothing() });
    assert_eq!(refusal(&refused), "sandbox.id_taken");
}

#[test]
fn the_id_of_an_exec_is_taken_in_every_sandbox_and_after_its_end() {
    let mut world = SandboxWorld::new();
    world.ready("box-1");
    world.ready("box-2");
    let exec = exec_of(&world.run("box-1", Some("exec-1")));
    assert_eq!(refusal(&world.run("box-2", Some("exec-1"))), "exec.id_taken");
    world.ended(&exec, ExecOutcome::Exited { code: 0 });
    assert_eq!(refusal(&world.run("box-1", Some("exec-1"))), "exec.id_taken");
    world.flush();
    assert_eq!(world.world.engine.sizes().sandbox_execs, 0);
    assert_eq!(refusal(&world.run("box-1", Some("exec-1"))), "exec.id_taken");
}

#[test]
fn a_stop_while_it_starts_ends_it_and_a_late_start_changes_nothing() {
    let mut world = SandboxWorld::new();
    world.create("box-1");
    let stop = world.ask(SandboxCommand::Stop { id: named("box-1") });
    assert!(matches!(orders(&stop)[..], [StandaloneEffect::Down { incarnation: 1 }]));
    let late = world.started("box-1");
    assert!(late.writes.is_empty() && orders(&late).is_empty());
    let stopped = world.down("box-1");
    assert_eq!(orders(&stopped), [&StandaloneEffect::Tidy]);
    assert_eq!(world.state("box-1"), SandboxState::Stopped);
    // Again is no error, and does nothing.
    assert!(orders(&world.ask(SandboxCommand::Stop { id: named("box-1") })).is_empty());
}

#[test]
fn a_deletion_while_it_starts_waits_for_its_processes_and_then_removes_its_files() {
    let mut world = SandboxWorld::new();
    world.create("box-1");
    world.ask(SandboxCommand::Remove { id: named("box-1") });
    world.started("box-1");
    let down = world.down("box-1");
    assert_eq!(orders(&down), [&StandaloneEffect::Remove]);
    let failed = StandaloneObservation::NotRemoved { sandbox: named("box-1"), detail: "busy".into() };
    world.see(failed);
    assert_eq!(world.state("box-1"), SandboxState::Deleting);
    assert!(world.rows[&named("box-1")].failure.is_some());
    // Asked again, it is tried again.
    let again = world.ask(SandboxCommand::Remove { id: named("box-1") });
    assert!(matches!(orders(&again)[..], [StandaloneEffect::Down { .. }]));
    world.down("box-1");
    world.see(StandaloneObservation::Removed { sandbox: named("box-1") });
    assert_eq!(world.state("box-1"), SandboxState::Deleted);
}

#[test]
fn a_stop_settles_every_exec_before_anything_is_removed() {
    let mut world = SandboxWorld::new();
    world.ready("box-1");
    let exec = exec_of(&world.run("box-1", None));
    world.ask(SandboxCommand::Stop { id: named("box-1") });
    let down = world.down("box-1");
    assert_eq!(world.state("box-1"), SandboxState::Stopping, "its exec has no outcome yet");
    assert!(is_exec_order(orders(&down)[0], &ExecOrder::Kill { exec: exec.clone() }));
    let ended = world.ended(&exec, ExecOutcome::Killed { signal: 15 });
    assert_eq!(world.exec_state(&exec), SandboxExecState::Cancelled);
    assert_eq!(world.state("box-1"), SandboxState::Stopped);
    assert_eq!(orders(&ended).last(), Some(&&StandaloneEffect::Tidy));
}

#[test]
fn a_cancel_that_races_with_the_end_is_decided_once() {
    let mut world = SandboxWorld::new();
    world.ready("box-1");
    let exec = exec_of(&world.run("box-1", None));
    world.ask(SandboxCommand::CancelExec { id: exec.clone() });
    world.ended(&exec, ExecOutcome::Exited { code: 0 });
    assert_eq!(world.exec_state(&exec), SandboxExecState::Cancelled);
    assert!(world.ended(&exec, ExecOutcome::Lost).writes.is_empty(), "a second report changes nothing");
    assert_eq!(refusal(&world.ask(SandboxCommand::CancelExec { id: exec })), "exec.not_running");
}

#[test]
fn a_dead_sandbox_is_failed_and_its_execs_end_with_what_they_left() {
    let mut world = SandboxWorld::new();
    world.ready("box-1");
    let (done, lost) = (exec_of(&world.run("box-1", None)), exec_of(&world.run("box-1", None)));
    let died = StandaloneObservation::Died { sandbox: named("box-1"), incarnation: 1, detail: "gone".into() };
    let batch = world.see(died);
    assert_eq!(world.state("box-1"), SandboxState::Failed);
    assert!(matches!(orders(&batch)[..], [StandaloneEffect::Down { .. }]));
    assert_eq!(refusal(&world.ask(SandboxCommand::Resume { id: named("box-1") })), "sandbox.wrong_state");
    world.down("box-1");
    world.ended(&done, ExecOutcome::Exited { code: 4 });
    let settled = world.ended(&lost, ExecOutcome::Lost);
    assert_eq!(orders(&settled).last(), Some(&&StandaloneEffect::Tidy));
    assert_eq!(world.exec_state(&done), SandboxExecState::Finished);
    assert_eq!(world.execs[&lost].progress.reason, Some(ExecFailReason::Lost));
    world.ask(SandboxCommand::Resume { id: named("box-1") });
    assert_eq!((world.state("box-1"), world.rows[&named("box-1")].incarnation), (SandboxState::Pending, 2));
    // What an earlier incarnation says is not about this one.
    let late = StandaloneObservation::Died { sandbox: named("box-1"), incarnation: 1, detail: "late".into() };
    assert!(world.see(late).writes.is_empty());
}

#[test]
fn the_next_daemon_continues_what_was_begun_in_every_state() {
    let mut world = SandboxWorld::new();
    for given in ["pending", "is-ready", "stopping", "stopped-1", "failed-1", "deleting", "deleted"] {
        world.create(given);
    }
    for given in ["is-ready", "stopping", "stopped-1", "failed-1", "deleting", "deleted"] {
        world.started(given);
    }
    let exec = exec_of(&world.run("is-ready", None));
    for given in ["stopping", "stopped-1"] {
        world.ask(SandboxCommand::Stop { id: named(given) });
    }
    for given in ["deleting", "deleted"] {
        world.ask(SandboxCommand::Remove { id: named(given) });
    }
    world.down("stopped-1");
    world.down("deleted");
    world.see(StandaloneObservation::Removed { sandbox: named("deleted") });
    let failed =
        StandaloneObservation::Died { sandbox: named("failed-1"), incarnation: 1, detail: "x".into() };
    world.see(failed);
    world.down("failed-1");
    let (mut world, batch) = world.restarted();
    let mut ordered = BTreeMap::new();
    for effect in acts(&batch) {
        if let Effect::Standalone { sandbox, what } = effect {
            let word = match what {
                StandaloneEffect::Up { how: StartMode::Start, .. } => "start",
                StandaloneEffect::Up { how: StartMode::Adopt, .. } => "adopt",
                StandaloneEffect::Down { .. } => "down",
                other => panic!("{other:?}"),
            };
            ordered.insert(sandbox.to_string(), word);
        }
    }
    let expected = [("deleting", "down"), ("is-ready", "adopt"), ("pending", "start"), ("stopping", "down")];
    assert_eq!(ordered, expected.map(|(id, word)| (id.to_owned(), word)).into());
    assert_eq!(world.world.engine.sizes().sandboxes, 4, "what is at rest is not loaded");
    // The keeper is connected: the exec is requested again, and not started twice.
    let adopted = world.started("is-ready");
    assert!(is_exec_order(orders(&adopted)[0], &ExecOrder::Start { exec: exec.clone(), resumed: true }));
    assert!(kinds(&adopted).is_empty(), "it was ready before");
    world.ended(&exec, ExecOutcome::Exited { code: 7 });
    assert_eq!(world.execs[&exec].progress.exit_code, Some(7));
}

#[test]
fn a_restart_loads_what_is_in_memory_and_not_at_rest() {
    let mut world = SandboxWorld::new();
    world.ready("box-1");
    world.ready("box-2");
    world.run("box-1", None);
    world.ask(SandboxCommand::Stop { id: named("box-2") });
    world.down("box-2");
    let before = world.world.engine.facts();
    assert_eq!((before.sandboxes.len(), before.sandbox_execs.len()), (1, 1));
    let (world, _) = world.restarted();
    let after = world.world.engine.facts();
    assert_eq!((before.sandboxes, before.sandbox_execs), (after.sandboxes, after.sandbox_execs));
    assert_eq!(before.streams.get("box-1"), after.streams.get("box-1"));
}
