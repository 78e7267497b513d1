//! Who waits for the output or the end of a job, or of an exec in a standalone sandbox.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;

/// Watches that may exist before unused ones are removed.
const SWEEP_MIN: usize = 64;

/// How far a job is known to be. Behind what is on disk at most for a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OutputProgress {
    pub stdout: u64,
    pub stderr: u64,
    /// Its end is recorded.
    pub ended: bool,
}

/// One watch for each job or exec that a caller waits for; the others cost nothing.
#[derive(Debug)]
pub struct OutputWatches<Id> {
    jobs: Mutex<OutputWatchTable<Id>>,
}

#[derive(Debug)]
struct OutputWatchTable<Id> {
    senders: HashMap<Id, watch::Sender<OutputProgress>>,
    sweep_at: usize,
}

impl<Id> Default for OutputWatches<Id> {
    fn default() -> Self {
        OutputWatches { jobs: Mutex::new(OutputWatchTable { senders: HashMap::new(), sweep_at: 0 }) }
    }
}

impl<Id: Clone + Eq + Hash> OutputWatches<Id> {
    pub fn subscribe(&self, job: &Id) -> watch::Receiver<OutputProgress> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if jobs.senders.len() >= jobs.sweep_at.max(SWEEP_MIN) {
            jobs.senders.retain(|_, sender| sender.receiver_count() > 0);
            jobs.sweep_at = 2 * jobs.senders.len();
        }
        jobs.senders.entry(job.clone()).or_default().subscribe()
    }

    /// It wrote so much by now.
    pub fn wrote(&self, job: &Id, stdout: u64, stderr: u64) {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = jobs.senders.get(job) {
            sender.send_modify(|written| (written.stdout, written.stderr) = (stdout, stderr));
        }
    }

    /// The end is recorded: waiters get one last change.
    pub fn ended(&self, job: &Id) {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = jobs.senders.remove(job) {
            sender.send_modify(|written| written.ended = true);
        }
    }
}

#[cfg(test)]
mod tests {
    use lodge_core::JobId;

    use super::*;

    fn job(number: usize) -> JobId {
        format!("job_{number:024}").parse().unwrap()
    }

    #[test]
    fn a_waiting_caller_gets_output_and_the_end_which_is_the_last() {
        let watches = OutputWatches::default();
        let (first, mut heard) = (job(1), watches.subscribe(&job(1)));
        watches.wrote(&first, 3, 0);
        watches.wrote(&job(2), 9, 9);
        assert!(heard.has_changed().unwrap());
        assert_eq!(*heard.borrow_and_update(), OutputProgress { stdout: 3, stderr: 0, ended: false });
        watches.ended(&first);
        assert!(heard.borrow_and_update().ended);
        assert!(heard.has_changed().is_err(), "nothing comes after the end");
    }

    #[test]
    fn watches_that_nobody_holds_do_not_pile_up() {
        let watches = OutputWatches::default();
        let held: Vec<_> = (0..10).map(|number| watches.subscribe(&job(number))).collect();
        for number in 10..100 * SWEEP_MIN {
            drop(watches.subscribe(&job(number)));
        }
        let jobs = watches.jobs.lock().unwrap();
        assert!(jobs.senders.len() <= SWEEP_MIN, "{}", jobs.senders.len());
        assert!((0..held.len()).all(|number| jobs.senders.contains_key(&job(number))));
    }
}
