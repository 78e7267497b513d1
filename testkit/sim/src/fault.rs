//! What goes wrong, when, and to whom.

use lodge_core::SandboxId;
use lodge_daemon::engine::Seen;

use crate::keeper::Ended;
use crate::plan::Fault;
use crate::world::{Next, World};

/// The wall clock stays within this of the truth: what is remembered for a day stays remembered.
const SKEW_MAX_MS: i64 = 6 * 60 * 60 * 1_000;

impl World {
    pub fn fault(&mut self, storm: u64) {
        if storm != self.storm || self.calm {
            return;
        }
        let pause = self.rng.delay(self.plan.fault_every_ms);
        self.after(pause, Next::Fault { storm });
        let Some(fault) = self.rng.pick(&self.plan.faults).copied() else { return };
        self.tally.faults += 1;
        let running = |world: &World| -> Vec<SandboxId> {
            let held = world.machine.sandboxes.iter().filter(|(_, sandbox)| sandbox.keeper.is_some());
            held.map(|(id, _)| id.clone()).collect()
        };
        let sandboxes = running(self);
        let victim = self.rng.pick(&sandboxes).cloned();
        self.say(|| format!("fault: {fault:?} {victim:?}"));
        match (fault, victim) {
            (Fault::DaemonDies, _) => self.daemon_dies("killed"),
            (Fault::DaemonDiesAt(point), _) => self.die_at = Some(point),
            (Fault::DiskFails, _) => self.disk_fails = true,
            (Fault::DiskFull, _) => self.disk_full = true,
            (Fault::StoreAway, _) => self.store.goes_away(self.rng.between(1, 20)),
            (Fault::StoreFenced, _) => self.store.is_fenced = true,
            (Fault::PowerLoss, _) => self.power_loss(),
            (Fault::ClockJumps, _) => {
                let jump = i64::try_from(self.rng.below(4_000_000)).unwrap_or(0) - 2_000_000;
                self.skew = (self.skew + jump).clamp(-SKEW_MAX_MS, SKEW_MAX_MS);
            }
            (Fault::KeeperDies, Some(id)) => self.keeper_dies(&id, "killed"),
            (Fault::RuntimeDies, Some(id)) => self.runtime_ends(&id, Ended::Signal(9)),
            (Fault::RuntimeExits, Some(id)) => {
                let code = i32::from(self.rng.chance(700));
                self.runtime_ends(&id, Ended::Code(code));
            }
            (Fault::RuntimeHangs, Some(id)) => self.runtime_hangs(&id),
            (Fault::KeeperHangs, Some(id)) => self.keeper_hangs(&id),
            (Fault::LinkCut, Some(id)) => self.link_breaks(&id),
            (Fault::SpawnFails, Some(id)) => self.stick(&id, |sandbox| sandbox.spawn_fails = 1),
            (Fault::ModelGone, Some(id)) => {
                let times = u32::try_from(self.rng.between(1, 3)).unwrap_or(1);
                self.stick(&id, |sandbox| sandbox.lacks_model = times);
            }
            (Fault::ProvidersChange, _) => self.tell(Seen::ProvidersChanged),
            (Fault::ArchiveFull, _) => self.jobs.archive_full = !self.jobs.archive_full,
            (Fault::Retention, _) => self.retention_looks(),
            (Fault::SlotsChange, _) => {
                self.plan.max_jobs = self.rng.between(1, 4) as usize;
                self.jobs.max_ever = self.jobs.max_ever.max(self.plan.max_jobs);
                self.plan.max_concurrent = self.rng.between(1, 4) as usize;
                let settings = self.host().settings;
                self.tell(Seen::Configured(settings));
            }
            (Fault::SandboxSticks, Some(id)) => self.stick(&id, |sandbox| sandbox.sticks = 1),
            (Fault::FilesStick, Some(id)) => self.stick(&id, |sandbox| sandbox.files_stick = 1),
            (
                Fault::KeeperDies
                | Fault::RuntimeDies
                | Fault::RuntimeExits
                | Fault::RuntimeHangs
                | Fault::KeeperHangs
                | Fault::LinkCut
                | Fault::SpawnFails
                | Fault::ModelGone
                | Fault::SandboxSticks
                | Fault::FilesStick,
                None,
            ) => {}
        }
    }

    fn stick(&mut self, id: &SandboxId, how: impl FnOnce(&mut crate::keeper::Sandbox)) {
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
        self.after(pause, Next::Fault { storm });
        if self.daemon.is_none() {
            self.after(0, Next::DaemonStarts);
        }
        for caller in 0..self.clients.callers.len() {
            let pause = self.rng.delay(self.plan.pause_ms);
            self.caller_later(caller, pause);
        }
    }
}
