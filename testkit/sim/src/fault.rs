//! What goes wrong, when, and to whom.

use lodge_core::SandboxId;
use lodge_engine::Seen;

use crate::keeper::SimExit;
use crate::plan::SimFault;
use crate::world::{SimEvent, SimWorld};

/// The wall clock stays within this of the truth: what is remembered for a day stays remembered.
const SKEW_MAX_MS: i64 = 6 * 60 * 60 * 1_000;

impl SimWorld {
    pub fn fault(&mut self, storm: u64) {
        if storm != self.storm || self.calm {
            return;
        }
        let pause = self.rng.delay(self.plan.fault_every_ms);
        self.after(pause, SimEvent::Fault { storm });
        let Some(fault) = self.rng.pick(&self.plan.faults).copied() else { return };
        self.tally.faults += 1;
        let running = |world: &SimWorld| -> Vec<SandboxId> {
            let held = world.machine.sandboxes.iter().filter(|(_, sandbox)| sandbox.keeper.is_some());
            held.map(|(id, _)| id.clone()).collect()
        };
        let sandboxes = running(self);
        let victim = self.rng.pick(&sandboxes).cloned();
        self.say(|| format!("fault: {fault:?} {victim:?}"));
        match (fault, victim) {
            (SimFault::DaemonDies, _) => self.daemon_dies("killed"),
            (SimFault::DaemonDiesAt(point), _) => self.die_at = Some(point),
            (SimFault::DiskFails, _) => self.disk_fails = true,
            (SimFault::DiskFull, _) => self.disk_full = true,
            (SimFault::StoreAway, _) => self.store.goes_away(self.rng.between(1, 20)),
            (SimFault::StoreFenced, _) => self.store.is_fenced = true,
            (SimFault::PowerLoss, _) => self.power_loss(),
            (SimFault::ClockJumps, _) => {
                let jump = i64::try_from(self.rng.below(4_000_000)).unwrap_or(0) - 2_000_000;
                self.skew = (self.skew + jump).clamp(-SKEW_MAX_MS, SKEW_MAX_MS);
            }
            (SimFault::KeeperDies, Some(id)) => self.keeper_dies(&id, "killed"),
            (SimFault::RuntimeDies, Some(id)) => self.runtime_ends(&id, SimExit::Signal(9)),
            (SimFault::RuntimeExits, Some(id)) => {
                let code = i32::from(self.rng.chance(700));
                self.runtime_ends(&id, SimExit::Code(code));
            }
            (SimFault::RuntimeHangs, Some(id)) => self.runtime_hangs(&id),
            (SimFault::KeeperHangs, Some(id)) => self.keeper_hangs(&id),
            (SimFault::LinkCut, Some(id)) => self.link_breaks(&id),
            (SimFault::SpawnFails, Some(id)) => self.stick(&id, |sandbox| sandbox.spawn_fails = 1),
            (SimFault::ModelGone, Some(id)) => {
                let times = u32::try_from(self.rng.between(1, 3)).unwrap_or(1);
                self.stick(&id, |sandbox| sandbox.lacks_model = times);
            }
            (SimFault::ProvidersChange, _) => self.tell(Seen::ProvidersChanged),
            (SimFault::ArchiveFull, _) => self.jobs.archive_full = !self.jobs.archive_full,
            (SimFault::Retention, _) => self.run_retention(),
            (SimFault::AgentsRest, _) => self.agents_rest(),
            (SimFault::SlotsChange, _) => {
                self.plan.max_jobs = self.rng.between(1, 4) as usize;
                self.jobs.max_ever = self.jobs.max_ever.max(self.plan.max_jobs);
                self.plan.max_concurrent = self.rng.between(1, 4) as usize;
                let settings = self.host().settings;
                self.tell(Seen::Configured(settings));
            }
            (SimFault::SandboxSticks, Some(id)) => self.stick(&id, |sandbox| sandbox.sticks = 1),
            (SimFault::FilesStick, Some(id)) => self.stick(&id, |sandbox| sandbox.files_stick = 1),
            (
                SimFault::KeeperDies
                | SimFault::RuntimeDies
                | SimFault::RuntimeExits
                | SimFault::RuntimeHangs
                | SimFault::KeeperHangs
                | SimFault::LinkCut
                | SimFault::SpawnFails
                | SimFault::ModelGone
                | SimFault::SandboxSticks
                | SimFault::FilesStick,
                None,
            ) => {}
        }
    }

    fn stick(&mut self, id: &SandboxId, how: impl FnOnce(&mut crate::keeper::SimSandbox)) {
        self.machine.sandboxes.get_mut(id).into_iter().for_each(|sandbox| {
            sandbox.spawn_fails = sandbox.spawn_fails.min(1);
        });
        if let Some(sandbox) = self.machine.sandboxes.get_mut(id) {
            how(sandbox);
        }
    }

    /// From here on nothing new goes wrong, and callers only wait for what they asked.
    pub fn calm_down(&mut self) {
        self.calm = true;
        self.clients.idle = true;
        (self.die_at, self.disk_fails, self.disk_full) = (None, false, false);
        self.store.comes_back();
        self.jobs.archive_full = false;
        self.antidote();
        for sandbox in self.machine.sandboxes.values_mut() {
            (sandbox.sticks, sandbox.files_stick, sandbox.spawn_fails) = (0, 0, 0);
            sandbox.lacks_model = 0;
        }
    }

    pub fn storm_begins(&mut self) {
        (self.calm, self.clients.idle) = (false, false);
        self.storm += 1;
        let storm = self.storm;
        let pause = self.rng.delay(self.plan.fault_every_ms);
        self.after(pause, SimEvent::Fault { storm });
        if self.daemon.is_none() {
            self.after(0, SimEvent::DaemonStarts);
        }
        for caller in 0..self.clients.callers.len() {
            let pause = self.rng.delay(self.plan.pause_ms);
            self.caller_later(caller, pause);
        }
    }
}
