//! Watches what execs use while they run, and ends those that reached a limit.
//!
//! Owns: the exec to which a reached limit is attributed, and how often to check. Where the kernel enforces a limit,
//! its counters are read; otherwise the usage of the processes is added up. Nothing is checked while nothing runs.

use std::time::{Duration, Instant};

use lodge_link::{ExecKind, ExitOutcome, LimitHit, Resource};

use crate::disk::WriteSpace;
use crate::execs::{ExecStage, RunningExec};
use crate::fence::Namespaces;
use crate::keep::Keeper;
use crate::kills::ProcessHold;
use crate::loads::{self, Load, Loads, Share};

/// Between two looks while a tool runs.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Between two looks while all that runs is what tools left behind, or the runtime.
const LOOK_SELDOM: Duration = Duration::from_millis(500);
/// How long the runtime counts as working after it sent or received something.
const RUNTIME_AT_WORK: Duration = Duration::from_secs(10);
/// Time between two measurements of shared memory, which take long if there is much.
const SHARES_EVERY: Duration = Duration::from_millis(500);
/// How long the keeper waits after a kill for lack of memory: a program that lost a process mostly ends by itself, and
/// its rest is no longer the largest.
const FALLS_WITHIN: Duration = Duration::from_secs(1);
/// Checks in a row that find refused forks, until the forking exec is ended.
const REFUSALS_MAX: u32 = 3;
/// The grace of an exec whose time is over.
const TIMEOUT_GRACE: Duration = Duration::from_secs(5);
/// How close to the allowed number of tasks an exec may be that can no longer fork.
const TASKS_NEAR: u64 = 2;

/// What is remembered from look to look.
#[derive(Debug, Default)]
pub(crate) struct LimitWatch {
    /// When to look next. None: nothing runs.
    pub(crate) at: Option<Instant>,
    oom_kills: u64,
    refused_forks: u64,
    refusals: u32,
    /// When an out-of-memory kill was seen that is not attributed yet.
    killed_at: Option<Instant>,
    shares_at: Option<Instant>,
    /// The last message from or to the runtime.
    pub(crate) runtime_at: Option<Instant>,
}

/// The counters when an exec began.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CountersAtStart {
    oom_kills: u64,
    refused_forks: u64,
}

/// An exec that uses something, be it over or not.
struct ExecUsageSample {
    exec: String,
    /// None: it is over, and what lives of it was left behind.
    serial: Option<u64>,
    kind: ExecKind,
    pids: Vec<i32>,
    load: Load,
}

impl Keeper {
    pub(crate) fn before(&self) -> CountersAtStart {
        let bounds = &self.confined.bounds;
        CountersAtStart {
            oom_kills: bounds.oom_kills().unwrap_or(0),
            refused_forks: bounds.refused_forks().unwrap_or(0),
        }
    }

    /// Something begins to run: it is looked at from now on.
    pub(crate) fn watch_from(&mut self, now: Instant) {
        let due = now + LOOK_EVERY;
        self.watch.at = Some(self.watch.at.map_or(due, |at| at.min(due)));
    }

    /// The runtime sent or received something, so it may be working.
    pub(crate) fn runtime_works(&mut self, now: Instant) {
        let limits = &self.confined.bounds.limits;
        if limits.memory_bytes.is_some() && !self.confined.bounds.counts_oom_kills() {
            self.watch.runtime_at = Some(now);
            self.watch.at.get_or_insert(now + LOOK_SELDOM);
        }
    }

    /// Looks at everything that runs, if it is time to.
    pub(crate) fn check_limits(&mut self, now: Instant) {
        if self.watch.at.is_none_or(|at| at > now) {
            return;
        }
        let tools = self.running.iter().any(|one| one.kind.is_called());
        let is_at_work = self.watch.runtime_at.is_some_and(|at| now < at + RUNTIME_AT_WORK);
        self.watch.at = if tools {
            Some(now + LOOK_EVERY)
        } else if self.left_behind() > 0 || is_at_work || self.is_counting() {
            Some(now + LOOK_SELDOM)
        } else {
            self.watch.runtime_at = None;
            return self.watch.at = None;
        };
        let loads = self.needs_loads().then(Loads::now);
        self.check_cpu_time(loads.as_ref());
        match (self.confined.bounds.oom_kills(), &loads) {
            (Some(kills), _) => self.check_kills(kills, now),
            (None, Some(loads)) => self.check_memory(loads, now),
            (None, None) => {}
        }
        self.check_tasks(loads.as_ref());
        self.check_disk(now);
    }

    /// Whether processes have to be added up, for want of a cgroup that does.
    fn needs_loads(&self) -> bool {
        let (bounds, limits) = (&self.confined.bounds, &self.confined.bounds.limits);
        let memory = limits.memory_bytes.is_some() && !bounds.counts_oom_kills();
        let pids = limits.pids.is_some() && bounds.refused_forks().is_none();
        let cpu = limits.cpu_ms.is_some() && self.confined.groups.is_none();
        self.confined.proc_is_ours && (memory || pids || cpu)
    }

    fn check_cpu_time(&mut self, loads: Option<&Loads>) {
        let Some(limit) = self.confined.bounds.limits.cpu_ms else { return };
        let mut over = Vec::new();
        for one in self.running.iter_mut().filter(|one| one.kind.is_called()) {
            let used_us = match (&one.held, loads) {
                (ProcessHold::Group(group), _) => group.cpu_us(),
                (ProcessHold::Guard(guard), Some(loads)) => guard.pid.map_or(0, |guardian| {
                    loads.sum(&loads.below(guardian)).cpu_us + loads.of(guardian).cpu_us
                }),
                (ProcessHold::Guard(_), None) => 0,
            };
            // Processes were not read all at once: one that was waited for meanwhile may be missing for a moment.
            one.cpu_us = one.cpu_us.max(used_us);
            if one.cpu_us / 1000 > limit {
                over.push((one.serial, one.cpu_us / 1000));
            }
        }
        for (serial, used) in over {
            self.breach(serial, LimitHit { resource: Resource::CpuTime, limit, used }, Duration::ZERO);
        }
    }

    /// The kernel killed a process because memory ran out: the rest of that exec is ended too. The kernel does not
    /// say which process it was, so the kill is attributed to the exec whose main process died, or else to the one
    /// that uses the most.
    fn check_kills(&mut self, kills: u64, now: Instant) {
        if kills <= self.watch.oom_kills {
            return self.watch.killed_at = None;
        }
        let Some(limit) = self.confined.bounds.limits.memory_bytes else { return };
        let cause = LimitHit { resource: Resource::Memory, limit, used: 0 };
        let fell = |one: &&RunningExec| match &one.stage {
            ExecStage::Draining { ended, .. } => *ended != ExitOutcome::Code(0),
            ExecStage::Alive => false,
        };
        // Execs that started later are not affected.
        let was_there = |one: &&RunningExec| one.before.oom_kills < kills;
        if let Some(one) = self.running.iter().filter(was_there).find(|one| fell(one) && one.cause.is_none())
        {
            self.watch.oom_kills = kills;
            return self.breach(one.serial, cause, Duration::ZERO);
        }
        if self.confined.proc_is_ours {
            let present: Vec<u64> = self.running.iter().filter(was_there).map(|one| one.serial).collect();
            let was_there =
                |using: &ExecUsageSample| using.serial.is_none_or(|serial| present.contains(&serial));
            // Had it been the runtime, it would have fallen.
            let is_tool = |using: &ExecUsageSample| using.kind.is_called();
            let all = self.using(&Loads::now()).into_iter();
            let using: Vec<ExecUsageSample> =
                all.filter(|using| is_tool(using) && was_there(using)).collect();
            let since = *self.watch.killed_at.get_or_insert(now);
            if using.len() > 1 && now < since + FALLS_WITHIN {
                return;
            }
            self.watch.oom_kills = kills;
            if let Some(largest) = largest(using, |using| using.load.rss_bytes) {
                self.end_using(&largest, cause);
            }
        }
    }

    /// Adds up what is in memory. What several processes share counts once, if it comes to that.
    fn check_memory(&mut self, loads: &Loads, now: Instant) {
        let Some(limit) = self.confined.bounds.limits.memory_bytes else { return };
        let using = self.using(loads);
        let shared = match self.confined.namespaces {
            Namespaces::Own => loads::shared_memory_bytes(),
            Namespaces::Host => 0,
        };
        let shared = shared + loads::memory_files_bytes(using.iter().flat_map(|using| &using.pids));
        let most = using.iter().map(|using| using.load.rss_bytes).sum::<u64>() + shared;
        if most <= limit || self.watch.shares_at.is_some_and(|at| now < at) {
            return;
        }
        self.watch.shares_at = Some(now + SHARES_EVERY);
        let shares = using.iter().flat_map(|using| &using.pids).map(|pid| {
            let whole = || Share { own_bytes: loads.of(*pid).rss_bytes, shared_bytes: 0 };
            Share::of(*pid).unwrap_or_else(whole)
        });
        let (own, mapped) =
            shares.fold((0, 0), |(own, mapped), share| (own + share.own_bytes, mapped + share.shared_bytes));
        // What is mapped of shared memory is part of it.
        let used = own + mapped.max(shared);
        if used > limit {
            let cause = LimitHit { resource: Resource::Memory, limit, used };
            self.watch.shares_at = None;
            let holds =
                |using: &ExecUsageSample| using.load.rss_bytes + loads::memory_files_bytes(using.pids.iter());
            if let Some(largest) = largest(using, holds) {
                self.end_using(&largest, cause);
            }
        }
    }

    /// A refused fork is the program's problem. An exec that keeps trying, or leaves no room, is ended.
    fn check_tasks(&mut self, loads: Option<&Loads>) {
        let Some(limit) = self.confined.bounds.limits.pids else { return };
        let is_full = match (self.confined.bounds.refused_forks(), loads) {
            (Some(refused), _) => {
                let is_more = refused > std::mem::replace(&mut self.watch.refused_forks, refused);
                // Execs at their limit need not fail again.
                is_more || self.watch.refusals > 0 && self.is_full(&Loads::now(), limit)
            }
            (None, Some(loads)) => self.is_full(loads, limit),
            (None, None) => false,
        };
        self.watch.refusals = if is_full { self.watch.refusals + 1 } else { 0 };
        if self.watch.refusals < REFUSALS_MAX || !self.confined.proc_is_ours {
            return;
        }
        self.watch.refusals = 0;
        let using = self.using(&Loads::now());
        if let Some(most) = largest(using, |using| using.load.tasks) {
            let cause = LimitHit { resource: Resource::Pids, limit, used: most.load.tasks };
            self.end_using(&most, cause);
        }
    }

    fn is_full(&self, loads: &Loads, limit: u64) -> bool {
        self.using(loads).iter().map(|using| using.load.tasks).sum::<u64>() + TASKS_NEAR >= limit
    }

    /// Ends those of the tools that wrote the most. Those that cannot write have to be left to remove files.
    pub(crate) fn end_writers(&mut self, cause: LimitHit) {
        let loads = Loads::now();
        let spaces: Vec<(u64, WriteSpace)> = self.running.iter().map(|one| (one.serial, one.space)).collect();
        let may_have_taken = |using: &ExecUsageSample| {
            let own = spaces.iter().find(|(serial, _)| using.serial == Some(*serial));
            own.is_none_or(|(_, space)| space.may_have_taken(cause.used))
        };
        let is_tool = |using: &ExecUsageSample| using.kind.is_called();
        let using = self.using(&loads).into_iter().filter(|using| is_tool(using) && may_have_taken(using));
        // What a job says is written by the keeper.
        let said = |serial: Option<u64>| {
            let one = self.running.iter().find(|one| serial == Some(one.serial));
            one.map_or(0, |one| one.stdout.counted.kept + one.stderr.counted.kept)
        };
        let written = |using: &ExecUsageSample| {
            using.pids.iter().map(|pid| loads::written_bytes(*pid)).sum::<u64>() + said(using.serial)
        };
        let using: Vec<(u64, ExecUsageSample)> = using.map(|using| (written(&using), using)).collect();
        let most = using.iter().map(|(written, _)| *written).max().unwrap_or(0);
        for (_, using) in using.iter().filter(|(written, _)| *written == most) {
            self.end_using(using, cause);
        }
    }

    /// Everything that runs, with what it uses.
    fn using(&self, loads: &Loads) -> Vec<ExecUsageSample> {
        let pids = |held: &ProcessHold| pids_of(held, loads);
        let running =
            self.running.iter().map(|one| (one.id.clone(), Some(one.serial), one.kind, pids(&one.held)));
        let past = self
            .past
            .iter()
            .filter_map(|past| Some((past.exec.clone(), None, ExecKind::Tool, pids(past.held.as_ref()?))));
        let all = running.chain(past);
        all.map(|(exec, serial, kind, pids)| ExecUsageSample {
            load: loads.sum(&pids),
            exec,
            serial,
            kind,
            pids,
        })
        .collect()
    }

    fn end_using(&mut self, using: &ExecUsageSample, cause: LimitHit) {
        match using.serial {
            Some(serial) => self.breach(serial, cause, Duration::ZERO),
            None => {
                self.log.write_line(&format!("what {} left ran into a limit: {cause:?}", using.exec));
                self.explained(cause.resource);
                self.schedule_kill(&using.exec, Duration::ZERO);
                self.kill_due(Instant::now());
            }
        }
    }

    /// Ends an exec that reached a limit. The first limit is the one that is reported.
    pub(crate) fn breach(&mut self, serial: u64, cause: LimitHit, grace: Duration) {
        let Some(one) = self.running.iter_mut().find(|one| one.serial == serial) else { return };
        if one.cause.is_some() {
            return;
        }
        one.cause = Some(cause);
        let exec = one.id.clone();
        self.log.write_line(&format!("{exec} ran into a limit: {cause:?}"));
        self.schedule_kill(&exec, grace);
        self.kill_due(Instant::now());
    }

    /// The kernel's count up to now is attributed, so that no other live exec gets it.
    pub(crate) fn explained(&mut self, resource: Resource) {
        let now = self.before();
        for one in self.running.iter_mut().filter(|one| one.stage == ExecStage::Alive) {
            match resource {
                Resource::Memory => one.before.oom_kills = now.oom_kills,
                Resource::Pids => one.before.refused_forks = now.refused_forks,
                Resource::CpuTime | Resource::Disk | Resource::Time | Resource::Output => {}
            }
        }
    }

    /// Ends those whose time is over.
    pub(crate) fn end_overdue(&mut self, now: Instant) {
        let overdue =
            |one: &&RunningExec| one.stage == ExecStage::Alive && one.deadline.is_some_and(|at| at <= now);
        while let Some(one) = self.running.iter().find(overdue) {
            let (serial, limit) = (one.serial, one.timeout_ms);
            self.breach(serial, LimitHit { resource: Resource::Time, limit, used: limit }, TIMEOUT_GRACE);
            if let Some(one) = self.running.iter_mut().find(|one| one.serial == serial) {
                one.deadline = None;
            }
        }
    }

    /// Ends a tool that writes more than it may.
    pub(crate) fn check_output(&mut self, serial: u64) {
        let Some(one) = self.running.iter().find(|one| one.serial == serial) else { return };
        let used = one.stdout.counted.seen + one.stderr.counted.seen;
        if one.kind.is_called() && one.output_max > 0 && used > one.output_max {
            let cause = LimitHit { resource: Resource::Output, limit: one.output_max, used };
            self.breach(serial, cause, Duration::ZERO);
        }
    }

    /// The limit that an exec which is over ran into, from how it ended and what the kernel counted meanwhile.
    pub(crate) fn cause_of(&mut self, one: &RunningExec, ended: &ExitOutcome) -> Option<LimitHit> {
        if one.cause.is_some() {
            return one.cause;
        }
        let limits = self.confined.bounds.limits;
        let by =
            |signal: i32| *ended == ExitOutcome::Signal(signal) || *ended == ExitOutcome::Code(128 + signal);
        let cause = |resource, limit: Option<u64>| limit.map(|limit| LimitHit { resource, limit, used: 0 });
        if one.kind.is_called() && by(libc::SIGXCPU) && limits.cpu_ms.is_some() {
            return cause(Resource::CpuTime, limits.cpu_ms);
        }
        if by(libc::SIGXFSZ) && limits.disk_bytes.is_some() {
            return cause(Resource::Disk, limits.disk_bytes);
        }
        let now = self.before();
        // Other running execs may have been hit as well.
        let is_alone = one.kind.is_called() && !self.running.iter().any(|one| one.kind.is_called());
        let was_asked_to_end = self.is_kill_scheduled(&one.id) || self.ending.is_some();
        let was_large = match (&one.stage, limits.memory_bytes) {
            (ExecStage::Draining { usage, .. }, Some(limit)) => {
                usage.max_rss_kb.saturating_mul(1024) >= limit / 2
            }
            (ExecStage::Draining { .. } | ExecStage::Alive, _) => false,
        };
        // A kill that is not attributed yet: it belongs to an exec that fails now or that used that much.
        let is_new = now.oom_kills > self.watch.oom_kills && (was_large || *ended != ExitOutcome::Code(0));
        let fell = by(libc::SIGKILL) || is_alone || (is_new && one.kind.is_called());
        if now.oom_kills > one.before.oom_kills && fell && !was_asked_to_end {
            self.watch.oom_kills = now.oom_kills;
            return cause(Resource::Memory, limits.memory_bytes);
        }
        let is_refused = self.is_refused(one, ended) && (is_alone || self.has_most_tasks(one));
        if is_refused && !was_asked_to_end { cause(Resource::Pids, limits.pids) } else { None }
    }

    /// Whether the kernel refused processes while this exec ran.
    fn is_refused(&self, one: &RunningExec, ended: &ExitOutcome) -> bool {
        let Some(limit) = self.confined.bounds.limits.pids.filter(|_| one.kind.is_called()) else {
            return false;
        };
        match self.confined.bounds.refused_forks() {
            Some(refused) => refused > one.before.refused_forks,
            // The kernel does not count, so the leftover processes decide.
            None => {
                *ended != ExitOutcome::Code(0) && self.confined.proc_is_ours && {
                    let loads = Loads::now();
                    self.is_full(&loads, limit.saturating_sub(leftover_tasks(one, &loads)))
                }
            }
        }
    }

    /// Whether more than half of the tasks that are allowed are those which this exec left.
    fn has_most_tasks(&self, one: &RunningExec) -> bool {
        let limit = self.confined.bounds.limits.pids;
        self.confined.proc_is_ours
            && limit.is_some_and(|limit| leftover_tasks(one, &Loads::now()).saturating_mul(2) > limit)
    }
}

/// The tasks of an exec that has ended. It is no longer among the running ones, and neither is its main process.
fn leftover_tasks(one: &RunningExec, loads: &Loads) -> u64 {
    loads.sum(&pids_of(&one.held, loads)).tasks + 1
}

/// The processes of an exec.
fn pids_of(held: &ProcessHold, loads: &Loads) -> Vec<i32> {
    match held {
        ProcessHold::Group(group) => group.pids().unwrap_or_default(),
        ProcessHold::Guard(guard) => guard.pid.map(|guardian| loads.below(guardian)).unwrap_or_default(),
    }
}

/// A tool before the runtime, and of those the one that uses most.
fn largest(using: Vec<ExecUsageSample>, of: impl Fn(&ExecUsageSample) -> u64) -> Option<ExecUsageSample> {
    let rank = |using: &ExecUsageSample| (of(using) > 0, using.kind.is_called(), of(using));
    using.into_iter().filter(|using| of(using) > 0).max_by_key(rank)
}
