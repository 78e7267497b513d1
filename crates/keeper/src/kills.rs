//! Killing one exec: all that it started, also what left its session long before and what forks meanwhile.
//!
//! Owns: the handle on an exec's processes, and the way from SIGTERM to the proof that none is left. The kernel gives
//! the proof: a cgroup without processes, or a guardian without children.

use std::cell::OnceCell;
use std::time::{Duration, Instant};

use lodge_link::{ExitOutcome, GUARDIANS_FILE, ResourceUsage, limits};

use crate::execs::{ExecStage, RunningExec};
use crate::fence::Namespaces;
use crate::group::ExecCgroup;
use crate::guardian::{Guardian, ProgramDeath};
use crate::keep::Keeper;
use crate::launch;
use crate::sys;
use crate::tree::{self, ExcludedProcesses, PidUse, ProcessTree};

/// Most ended execs that are remembered though nothing lives on of them.
const ENDED_MAX: usize = 1024;
/// Between two blows at what does not fall at once.
const STRIKE_AGAIN_AFTER: Duration = Duration::from_millis(2);
/// How long an exec is struck before it must be taken for stuck in the kernel.
const STRIKE_WITHIN: Duration = Duration::from_secs(10);
/// How long no stray may be seen until there is none.
const STRAYS_QUIET: Duration = Duration::from_millis(200);

/// What holds the processes of one exec together.
#[derive(Debug)]
pub(crate) enum ProcessHold {
    Group(ExecCgroup),
    Guard(Guardian),
}

/// An exec to be killed once its grace is over, whether or not its main process still runs.
#[derive(Debug)]
pub(crate) struct PendingKill {
    exec: String,
    pub(crate) at: Instant,
    until: Instant,
}

/// An exec that ended, and what may live on of it.
#[derive(Debug)]
pub(crate) struct EndedExec {
    pub(crate) exec: String,
    main: Option<i32>,
    pub(crate) held: Option<ProcessHold>,
}

/// The search for processes whose guardian was killed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StraySearch {
    pub(crate) at: Instant,
    quiet_since: Instant,
    until: Instant,
}

/// What a blow left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KillLeftover {
    Nothing,
    Something,
}

impl Keeper {
    /// Whether this exec can be killed by name, be it over or not.
    pub(crate) fn is_killable(&self, exec: &str) -> bool {
        self.running.iter().any(|one| one.id == exec) || self.past.iter().any(|past| past.exec == exec)
    }

    /// Whether the end of this exec is scheduled.
    pub(crate) fn is_kill_scheduled(&self, exec: &str) -> bool {
        self.doomed.iter().any(|doomed| doomed.exec == exec)
    }

    /// Sends SIGTERM to an exec and its descendants, and schedules SIGKILL.
    pub(crate) fn schedule_kill(&mut self, exec: &str, grace: Duration) {
        let now = Instant::now();
        if !grace.is_zero() {
            self.ask(exec);
        }
        let (at, until) = (now + grace, now + grace + STRIKE_WITHIN);
        match self.doomed.iter_mut().find(|doomed| doomed.exec == exec) {
            Some(doomed) if doomed.at <= at => {}
            Some(doomed) => (doomed.at, doomed.until) = (at, until),
            None => self.doomed.push(PendingKill { exec: exec.to_owned(), at, until }),
        }
    }

    /// Kills an exec that broke a rule, and notes which.
    pub(crate) fn kill_for_breach(&mut self, serial: u64, note: &str) {
        let Some(one) = self.running.iter_mut().find(|one| one.serial == serial) else { return };
        one.note.push_str(note);
        let exec = one.id.clone();
        self.schedule_kill(&exec, Duration::ZERO);
        self.kill_due(Instant::now());
    }

    /// Strikes whose grace is over, again and again until nothing of them is left.
    pub(crate) fn kill_due(&mut self, now: Instant) {
        // One look at the processes serves for all of them, and others get their turn before the next.
        let walk = OnceCell::new();
        let mut at = 0;
        while at < self.doomed.len() {
            if self.doomed[at].at > now {
                at += 1;
                continue;
            }
            match self.kill_exec_processes(&self.doomed[at].exec, &walk) {
                KillLeftover::Something if now < self.doomed[at].until => {
                    self.doomed[at].at = now + STRIKE_AGAIN_AFTER;
                    at += 1;
                }
                KillLeftover::Something => {
                    let doomed = self.doomed.swap_remove(at);
                    self.log.write_line(&format!("some processes of {} did not end", doomed.exec));
                }
                KillLeftover::Nothing => drop(self.doomed.swap_remove(at)),
            }
        }
    }

    /// Everything under this name: an exec may run again while something of its first run lives.
    fn holds<'a>(&'a self, exec: &'a str) -> impl Iterator<Item = (Option<i32>, &'a ProcessHold)> {
        let running = self.running.iter().filter(move |one| one.id == exec).map(|one| (one.pid, &one.held));
        let past = self.past.iter().filter(move |past| past.exec == exec);
        running.chain(past.filter_map(|past| Some((past.main, past.held.as_ref()?))))
    }

    fn ask(&self, exec: &str) {
        for (main, held) in self.holds(exec) {
            let asked = match held {
                ProcessHold::Group(group) => group.signal(libc::SIGTERM),
                ProcessHold::Guard(Guardian { pid: Some(guardian), .. }) if self.confined.proc_is_ours => {
                    for process in ProcessTree::now().descendants(*guardian) {
                        // One that ended in the meantime is what was wanted.
                        if !process.is_zombie && tree::signal(&process, libc::SIGTERM).is_err() {}
                    }
                    Ok(())
                }
                ProcessHold::Guard(guard) => guard.signal_group(main, libc::SIGTERM),
            };
            if let Err(error) = asked {
                self.log.write_line(&format!("could not ask {exec} to end: {error}"));
            }
        }
    }

    fn kill_exec_processes(&self, exec: &str, walk: &OnceCell<ProcessTree>) -> KillLeftover {
        let mut left = KillLeftover::Nothing;
        for (main, held) in self.holds(exec) {
            let is_gone = match held {
                ProcessHold::Group(group) => {
                    // Whether it worked is seen by whether anything is left.
                    drop(group.kill());
                    group.is_empty()
                }
                ProcessHold::Guard(guard) => self.kill_guarded_processes(guard, main, walk),
            };
            if !is_gone {
                left = KillLeftover::Something;
            }
        }
        left
    }

    /// Whether everything that descends from the guardian is gone, which is so once it is gone itself.
    fn kill_guarded_processes(
        &self,
        guard: &Guardian,
        main: Option<i32>,
        walk: &OnceCell<ProcessTree>,
    ) -> bool {
        let Some(guardian) = guard.pid else { return true };
        if self.confined.proc_is_ours {
            let reach = PidUse::within(self.confined.namespaces, guardian);
            walk.get_or_init(ProcessTree::now).kill_descendants(
                guardian,
                ExcludedProcesses::Themselves(&[]),
                reach,
            );
        } else {
            drop(guard.signal_group(main, libc::SIGKILL));
        }
        // A stopped guardian would never see that it is alone.
        drop(sys::kill(guardian, libc::SIGCONT));
        false
    }

    /// Reads the guardian's report about the end of a program.
    pub(crate) fn read_guardian(&mut self, serial: u64) {
        let Some(one) = self.running.iter_mut().find(|one| one.serial == serial) else { return };
        if let ProcessHold::Guard(guard) = &mut one.held
            && let Some(ending) = guard.ending()
        {
            one.ended(ending.died.into(), ending.usage);
        }
    }

    /// A process was collected that is no exec's main one: perhaps a guardian, or the last one in a cgroup.
    pub(crate) fn collected(&mut self, pid: i32, died: ProgramDeath) {
        let is_his = |held: &ProcessHold| matches!(held, ProcessHold::Guard(Guardian { pid: Some(his), .. }) if *his == pid);
        if let Some(at) = self.running.iter().position(|one| is_his(&one.held)) {
            self.read_guardian(self.running[at].serial);
            let is_ending = self.ending.is_some();
            let one = &mut self.running[at];
            if let ProcessHold::Guard(guard) = &mut one.held {
                guard.pid = None;
            }
            if one.stage == ExecStage::Alive {
                if !is_ending {
                    one.note.push_str("its guardian was killed. ");
                }
                await_ward(one);
            }
        }
        for past in self.past.iter_mut().filter(|past| past.held.as_ref().is_some_and(is_his)) {
            past.held = None;
        }
        match died {
            // A guardian ends by itself when nothing of its exec is left.
            ProgramDeath::Code(_) => {}
            ProgramDeath::Signal(_) if self.confined.groups.is_none() => {
                self.strays = Some(StraySearch::new())
            }
            ProgramDeath::Signal(_) => {}
        }
        self.give_back_groups();
    }

    /// Kills every process without a guardian. As every exec has one, these are what a killed guardian left.
    pub(crate) fn kill_strays(&mut self, now: Instant) {
        let Some(mut strays) = self.strays.filter(|strays| strays.at <= now) else { return };
        if self.confined.proc_is_ours {
            let own = std::process::id().cast_signed();
            let reach = PidUse::within(self.confined.namespaces, own);
            let gate = self.confined.net.gate.as_ref().map(|gate| gate.pid);
            let spared: Vec<i32> = self.guardians().into_iter().chain(gate).collect();
            if ProcessTree::now().kill_descendants(own, ExcludedProcesses::Children(&spared), reach) > 0 {
                strays.quiet_since = now;
            }
        }
        strays.at = now + STRIKE_AGAIN_AFTER;
        let is_over = now >= strays.quiet_since + STRAYS_QUIET || now >= strays.until;
        self.strays = (!is_over).then_some(strays);
    }

    /// The guardians that live. They are children that were not collected, so their pids are their own.
    pub(crate) fn guardians(&self) -> Vec<i32> {
        let running = self.running.iter().map(|one| &one.held);
        let past = self.past.iter().filter_map(|past| past.held.as_ref());
        let guardian = |held: &ProcessHold| match held {
            ProcessHold::Guard(guard) => guard.pid,
            ProcessHold::Group(_) => None,
        };
        running.chain(past).filter_map(guardian).collect()
    }

    /// Records the guardians if they have to outlive the keeper: a stopped one must then be resumed.
    pub(crate) fn record_guardians(&self) {
        match self.confined.namespaces {
            Namespaces::Own => return,
            Namespaces::Host if self.confined.groups.is_some() => return,
            Namespaces::Host => {}
        }
        let mut text = String::new();
        for process in self.guardians().into_iter().filter_map(tree::process) {
            let line = format!("{} {}\n", process.pid, process.start);
            if text.len() + line.len() <= limits::GUARDIANS_MAX {
                text.push_str(&line);
            }
        }
        if let Err(error) = launch::put_file(&self.dir, GUARDIANS_FILE, c"guardians.new", text.as_bytes()) {
            self.log.write_line(&format!("could not write down the guardians: {error}"));
        }
    }

    /// Remembers an exec that ended, for killing what it left behind.
    pub(crate) fn remember(&mut self, exec: String, main: Option<i32>, held: ProcessHold) {
        // Those of whom something lives are as many as there are processes, and stay.
        let idle = self.past.iter().position(|past| past.held.is_none());
        if let Some(idle) = idle.filter(|_| self.past.len() >= ENDED_MAX) {
            self.past.remove(idle);
        }
        let held = match held {
            ProcessHold::Guard(Guardian { pid: None, .. }) => None,
            held @ (ProcessHold::Guard(_) | ProcessHold::Group(_)) => Some(held),
        };
        self.past.push(EndedExec { exec, main, held });
        self.give_back_groups();
    }

    /// The daemon forgot this exec. Processes of it that live stay known by its name.
    pub(crate) fn forget_past(&mut self, exec: &str) {
        self.past.retain(|past| past.exec != exec || past.held.is_some());
    }

    fn give_back_groups(&mut self) {
        let Some(groups) = &self.confined.groups else { return };
        let is_over = |held: &mut ProcessHold| matches!(held, ProcessHold::Group(group) if group.is_empty());
        for past in &mut self.past {
            if let Some(ProcessHold::Group(group)) = past.held.take_if(is_over) {
                groups.give_back(group);
            }
        }
    }

    /// Of how many execs that ended something lives on.
    pub(crate) fn left_behind(&self) -> usize {
        self.past.iter().filter(|past| past.held.is_some()).count()
    }
}

impl StraySearch {
    fn new() -> StraySearch {
        let now = Instant::now();
        StraySearch { at: now, quiet_since: now, until: now + STRIKE_WITHIN }
    }
}

/// Without its guardian, the main process came to the keeper, which will see its end, or ended unseen.
fn await_ward(one: &mut RunningExec) {
    if !one.pid.is_some_and(sys::is_child) {
        one.note.push_str("how it ended is not known. ");
        one.ended(ExitOutcome::Signal(libc::SIGKILL), ResourceUsage::default());
    }
}
