//! Injects faults.

use lodge_core::SandboxId;
use lodge_engine::Observation;

use crate::life::LifeOrder;
use crate::machine::SimExit;
use crate::plan::SimFault;
use crate::world::{SimEvent, SimWorld};

/// The largest error of the wall clock. Small enough that records with a lifetime of a day do not expire.
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
            let alive = world.machine.sandboxes.iter().filter(|(_, sandbox)| sandbox.keeper.is_some());
            alive.map(|(id, _)| id.clone()).collect()
        };
        let sandboxes = match fault {
            // The sweep visits all sandboxes, dead ones included.
            SimFault::Sweep => self.machine.sandboxes.keys().cloned().collect(),
            _ => running(self),
        };
        let victim = self.rng.pick(&sandboxes).cloned();
        self.trace_line(|| format!("fault: {fault:?} {victim:?}"));
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
            (SimFault::SpawnFails, Some(id)) => self.set_failures(&id, |sandbox| sandbox.spawn_fails = 1),
            (SimFault::ModelGone, _) => {
                self.models_gone = u32::try_from(self.rng.between(1, 3)).unwrap_or(1);
            }
            (SimFault::ProviderDown, _) => self.provider_goes_down(),
            (SimFault::ProvidersChange, _) => self.report(Observation::ProvidersChanged),
            (SimFault::ArchiveFull, _) => self.jobs.archive_full = !self.jobs.archive_full,
            (SimFault::Retention, _) => self.run_retention(),
            (SimFault::DescriptorsGone, _) => {
                self.descriptors_gone_until = self.now + self.rng.between(1, 20_000);
            }
            (SimFault::AgentsRest, _) => self.agents_rest(),
            (SimFault::Sweep, Some(id)) => {
                if let Some(agent) = self.machine.sandboxes.get(&id).map(|sandbox| sandbox.agent.clone()) {
                    self.order(LifeOrder::Prune(id, agent));
                }
            }
            (SimFault::SlotsChange, _) => {
                self.plan.max_jobs = self.rng.between(1, 4) as usize;
                self.jobs.max_ever = self.jobs.max_ever.max(self.plan.max_jobs);
                self.plan.max_concurrent = self.rng.between(1, 4) as usize;
                let settings = self.host().settings;
                self.report(Observation::Configured(settings));
            }
            (SimFault::SandboxSticks, Some(id)) => self.set_failures(&id, |sandbox| sandbox.sticks = 1),
            (SimFault::FilesStick, Some(id)) => self.set_failures(&id, |sandbox| sandbox.files_stick = 1),
            (
                SimFault::KeeperDies
                | SimFault::RuntimeDies
                | SimFault::RuntimeExits
                | SimFault::RuntimeHangs
                | SimFault::KeeperHangs
                | SimFault::LinkCut
                | SimFault::SpawnFails
                | SimFault::SandboxSticks
                | SimFault::FilesStick
                | SimFault::Sweep,
                None,
            ) => {}
        }
    }

    fn set_failures(&mut self, id: &SandboxId, how: impl FnOnce(&mut crate::machine::SimSandbox)) {
        self.machine.sandboxes.get_mut(id).into_iter().for_each(|sandbox| {
            sandbox.spawn_fails = sandbox.spawn_fails.min(1);
        });
        if let Some(sandbox) = self.machine.sandboxes.get_mut(id) {
            how(sandbox);
        }
    }

    /// Stops all faults. Callers send no new requests.
    pub fn stop_faults(&mut self) {
        self.calm = true;
        self.clients.idle = true;
        (self.die_at, self.disk_fails, self.disk_full) = (None, false, false);
        self.store.comes_back();
        self.jobs.archive_full = false;
        self.remove_all_pills();
        self.models_gone = 0;
        self.provider_comes_back();
        self.descriptors_gone_until = 0;
        for sandbox in self.machine.sandboxes.values_mut() {
            (sandbox.sticks, sandbox.files_stick, sandbox.spawn_fails) = (0, 0, 0);
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
