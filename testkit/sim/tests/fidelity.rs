//! The simulated store loads the same state as the real one, after the same groups and restarts.

use std::path::Path;

use lodge_core::SessionId;
use lodge_core::job::JobWrite;
use lodge_core::record::{AgentWrite, SessionWrite, StoredState, Write};
use lodge_sim::{DiskGroup, SimDisk, SimMutation, SimTrace, Simulation};
use lodge_store::{OpenedDatabase, open};

fn opened(path: &Path) -> OpenedDatabase {
    open(path, &[7; 64]).unwrap_or_else(|error| panic!("{error}"))
}

/// Compares the debug output, because `StoredState` has no equality.
fn assert_same(simulated: &StoredState, real: &StoredState, seed: u64, group: usize) {
    let (simulated, real) = (format!("{simulated:#?}"), format!("{real:#?}"));
    let differs = simulated.lines().zip(real.lines()).find(|(a, b)| a != b);
    assert!(simulated == real, "seed {seed}, group {group}: {differs:?}");
}

#[test]
fn a_restart_loads_the_same_state_from_the_simulated_and_the_real_store() {
    let (mut restarts, mut groups, mut jobs) = (0, 0, 0);
    for seed in [1, 2, 3, 4] {
        let mut simulation = Simulation::new(seed, SimMutation::None, SimTrace::new(0));
        simulation.world().kept = Some(Vec::new());
        simulation.storms(1_000).unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
        let groups_kept = simulation.world().kept.take().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("daemon.db");
        let mut disk = SimDisk::default();
        let mut real: Option<OpenedDatabase> = None;
        for (at, group) in groups_kept.into_iter().enumerate() {
            match group {
                DiskGroup::Opened => {
                    // Closed before it is opened again, as after the death of a daemon.
                    drop(real.take());
                    let again = opened(&path);
                    assert_same(&disk.load(), &again.loaded, seed, at);
                    real = Some(again);
                    restarts += 1;
                }
                DiskGroup::Writes(writes) => {
                    commit(&mut disk, real.as_mut().unwrap(), &writes);
                    groups += 1;
                    jobs += writes.iter().filter(|write| matches!(write, Write::Job(_))).count();
                }
            }
        }
        drop(real);
        assert_same(&disk.load(), &opened(&path).loaded, seed, usize::MAX);
    }
    println!("{restarts} restarts, {groups} groups, {jobs} changes of jobs");
    assert!(
        restarts > 10 && groups > 1_000 && jobs > 100,
        "{restarts} restarts, {groups} groups, {jobs} jobs"
    );
}

fn commit(disk: &mut SimDisk, real: &mut OpenedDatabase, writes: &[Write]) {
    disk.commit(writes).unwrap_or_else(|broken| panic!("{broken}"));
    real.writer.commit(writes, ()).unwrap_or_else(|error| panic!("{error:?}")).into_inner();
    for write in writes {
        match write {
            Write::Request(row) => {
                let found =
                    real.reader.here(|snapshot| snapshot.request(&row.caller, &row.request_id)).unwrap();
                assert_eq!(found.as_ref(), disk.request(&row.caller, &row.request_id));
            }
            Write::Session(SessionWrite::New(row)) => same_session(disk, real, &row.id),
            Write::Session(SessionWrite::Fork(fork)) => same_session(disk, real, &fork.row.id),
            Write::Session(SessionWrite::Path(change)) => same_session(disk, real, &change.session),
            Write::Session(SessionWrite::Deleted { id }) => same_session(disk, real, id),
            Write::Job(write) => same_job(disk, real, write),
            Write::Agent(AgentWrite::State { id, .. } | AgentWrite::Spec { id, .. }) => {
                let found = real.reader.here(|snapshot| snapshot.agent_fact(id)).unwrap();
                assert_eq!(found, disk.agent_fact(id));
            }
            Write::Token(row) => {
                assert_eq!(
                    real.reader.here(|snapshot| snapshot.token(&row.id)).unwrap().as_ref(),
                    disk.token(&row.id)
                )
            }
            _ => {}
        }
    }
}

fn same_job(disk: &SimDisk, real: &OpenedDatabase, write: &JobWrite) {
    let id = match write {
        JobWrite::New { row, .. } => &row.id,
        JobWrite::Progress { id, .. }
        | JobWrite::Archived { id }
        | JobWrite::Told { id }
        | JobWrite::OutputRemoved { id }
        | JobWrite::Gone { id } => id,
    };
    let found = real.reader.here(|snapshot| snapshot.job_summary(id)).unwrap().map(|job| job.row);
    assert_eq!(found.as_ref(), disk.job(id));
    if let Some(row) = found {
        assert_eq!(
            real.reader.here(|snapshot| snapshot.has_unarchived_job(&row.agent)).unwrap(),
            disk.has_unarchived_job(&row.agent)
        );
    }
}

fn same_session(disk: &SimDisk, real: &OpenedDatabase, id: &SessionId) {
    assert_eq!(real.reader.here(|snapshot| snapshot.session_fact(id)).unwrap().as_ref(), disk.session(id));
}
