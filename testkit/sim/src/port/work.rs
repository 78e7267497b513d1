//! The store, the models, the images, the files and the outputs of a simulated daemon.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lodge_core::record::{AgentRow, ImageRecord};
use lodge_core::{AgentId, ExecId, JobId, SandboxId, TurnId};
use lodge_daemon::act::Layout;
use lodge_daemon::act::ports::{
    AgentFiles, AgentImages, Charge, ComputeError, ComputeThreads, FoundModel, ImagePins, JobOutputs,
    JobOwner, ModelCalls, ModelReply, ObtainedImages, PortFuture, PrepareError, PullFailure, ReadSize,
    RoomRefusal, StandaloneFiles, WorkRead, WorkStore,
};
use lodge_engine::jobs::{JobReport, JobToolRequest};
use lodge_engine::{ModelFailure, ModelOrder, SandboxPlan, StandalonePlan};
use lodge_exec::{KeeperSecret, Limits, Network, SandboxSpec};
use lodge_model::{ModelRequest, Redactor};
use lodge_store::ReadError;

use super::SimPort;
use crate::model::ModelPiece;
use crate::world::SimWorld;

impl WorkStore for SimPort {
    fn read(&self, size: ReadSize, read: WorkRead) -> PortFuture<'_, Result<(), ComputeError>> {
        Box::pin(async move {
            let typical_ms = match size {
                // A local store is read at once.
                ReadSize::Few => self.lock().plan.read_ms,
                ReadSize::Row | ReadSize::Conversation { .. } => self.lock().plan.disk_ms,
            };
            self.pause(typical_ms).await;
            if !self.read_disk(read) {
                return Err(match self.lock().rng.below(3) {
                    0 => ComputeError::Crowded,
                    1 => ReadError::Busy.into(),
                    _ => ReadError::failed("the store cannot be reached").into(),
                });
            }
            self.pause(typical_ms).await;
            Ok(())
        })
    }
}

impl ComputeThreads for SimPort {
    fn run<'a>(
        &'a self,
        _caller: &'a str,
        _bytes: usize,
        work: Box<dyn FnOnce(&Charge) + Send>,
    ) -> PortFuture<'a, Result<(), ComputeError>> {
        Box::pin(async move {
            self.pause(1).await;
            work(&Charge::default());
            Ok(())
        })
    }
}

/// Exists while a turn has a pending model call.
struct ModelCallGuard<'p> {
    port: &'p SimPort,
    turn: &'p TurnId,
}

impl Drop for ModelCallGuard<'_> {
    fn drop(&mut self) {
        self.port.if_alive(|world| {
            world.call_is_over(self.turn);
        });
    }
}

impl ModelCalls for SimPort {
    fn check(&self, _model: &str) -> Result<(), String> {
        let mut world = self.lock();
        match world.models_gone.checked_sub(1) {
            Some(left) => {
                world.models_gone = left;
                Err("no provider offers the model".to_owned())
            }
            None => Ok(()),
        }
    }

    fn find<'a>(&'a self, order: &'a ModelOrder) -> Result<Box<dyn FoundModel + 'a>, ModelFailure> {
        Ok(Box::new(SimModel { port: self, order }))
    }

    fn redactor(&self) -> Arc<Redactor> {
        self.redactor.clone()
    }
}

/// The model of one call.
struct SimModel<'p> {
    port: &'p SimPort,
    order: &'p ModelOrder,
}

impl FoundModel for SimModel<'_> {
    fn redactor(&self) -> Arc<Redactor> {
        self.port.redactor.clone()
    }

    fn call<'a>(
        &'a self,
        request: ModelRequest,
        on_text: &'a mut (dyn FnMut(&str) + Send),
    ) -> PortFuture<'a, Result<ModelReply, ModelFailure>> {
        let SimModel { port, order } = *self;
        Box::pin(async move {
            port.alive().await;
            let pieces = port.with(|world| world.model_gets_request(order, &request));
            let Some(pieces) = pieces else { return std::future::pending().await };
            let _asked = ModelCallGuard { port, turn: &order.turn };
            let typical_ms = port.lock().plan.model_ms;
            for piece in pieces {
                port.pause(typical_ms).await;
                if port.with(|world| world.compute_call(&order.turn)) {
                    return std::future::pending().await;
                }
                match piece {
                    ModelPiece::Text(text) => on_text(&text),
                    ModelPiece::Answer(answer) => return Ok(ModelReply { answer, micro_usd: None }),
                    ModelPiece::Failure(failure) => return Err(failure),
                }
            }
            std::future::pending().await
        })
    }
}

/// The pins of a pull.
#[derive(Debug)]
struct PinnedPull {
    port: SimPort,
    pin: u64,
}

impl ImagePins for PinnedPull {}

impl Drop for PinnedPull {
    fn drop(&mut self) {
        self.port.if_alive(|world| world.unpin_pull(self.pin));
    }
}

impl AgentImages for SimPort {
    fn obtain<'a>(&'a self, row: &'a AgentRow) -> PortFuture<'a, Result<ObtainedImages, PullFailure>> {
        Box::pin(async move {
            self.alive().await;
            let pause = self.with(|world| world.pull_begins(row));
            tokio::time::sleep(Duration::from_millis(pause)).await;
            self.alive().await;
            let (rows, tools, runtime, pin) = self.with(|world| world.pull_ends(row))?;
            Ok(ObtainedImages {
                rows,
                tools,
                runtime,
                pins: Box::new(PinnedPull { port: self.clone(), pin }),
            })
        })
    }

    fn collect(&self) -> PortFuture<'static, ()> {
        let port = self.clone();
        Box::pin(async move {
            port.pause(5).await;
            port.with(SimWorld::collect_images);
        })
    }
}

impl AgentFiles for SimPort {
    fn prepare<'a>(
        &'a self,
        plan: &'a SandboxPlan,
        _image: &'a ImageRecord,
        secret: KeeperSecret,
    ) -> PortFuture<'a, Result<SandboxSpec, PrepareError>> {
        Box::pin(async move {
            self.pause(10).await;
            if !self.with(|world| world.has_needed_images(plan)) {
                return Err(PrepareError::Incomplete("its image is gone".to_owned()));
            }
            Ok(sandbox_spec(&plan.sandbox, plan.incarnation, secret, plan.uid))
        })
    }

    fn describe<'a>(
        &'a self,
        _layout: &'a Layout,
        _plan: &'a SandboxPlan,
        _image: &'a ImageRecord,
    ) -> PortFuture<'a, Result<(), String>> {
        Box::pin(async {
            self.pause(1).await;
            Ok(())
        })
    }

    fn remove<'a>(&'a self, agent: &'a AgentId) -> PortFuture<'a, Result<(), String>> {
        Box::pin(async move {
            self.pause(10).await;
            self.with(|world| world.remove_agent_files(agent))
        })
    }

    fn append_log<'a>(&'a self, _agent: &'a AgentId, _line: String) -> PortFuture<'a, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }
}

impl StandaloneFiles for SimPort {
    fn prepare<'a>(
        &'a self,
        plan: &'a StandalonePlan,
        secret: KeeperSecret,
    ) -> PortFuture<'a, Result<SandboxSpec, String>> {
        Box::pin(async move {
            self.pause(10).await;
            Ok(sandbox_spec(&plan.sandbox, plan.incarnation, secret, plan.uid))
        })
    }

    fn root(&self, _sandbox: &SandboxId) -> PathBuf {
        "/".into()
    }

    fn remove<'a>(&'a self, _sandbox: &'a SandboxId) -> PortFuture<'a, Result<(), String>> {
        Box::pin(async {
            self.pause(10).await;
            Ok(())
        })
    }

    fn written(&self, _sandbox: &SandboxId, _exec: &ExecId) -> (u64, u64) {
        (0, 0)
    }
}

fn sandbox_spec(
    sandbox: &SandboxId,
    incarnation: u32,
    secret: KeeperSecret,
    uid: Option<u32>,
) -> SandboxSpec {
    SandboxSpec {
        id: sandbox.to_string(),
        incarnation,
        secret,
        root: "/".into(),
        private_root: None,
        uid,
        binds: Vec::new(),
        network: Network::None,
        limits: Limits::default(),
        log: "/".into(),
        logs: None,
        failpoint: None,
    }
}

impl JobOutputs for SimPort {
    fn archive(&self, job: &JobId) {
        self.with(|world| world.archive_all(job));
    }

    fn remove(&self, jobs: Vec<JobId>) {
        self.with(|world| world.remove_outputs(&jobs));
    }

    fn archived(&self, _agent: &AgentId) {}

    fn wrote<'a>(
        &'a self,
        _agent: &'a AgentId,
        job: &'a JobId,
        _stdout: u64,
        _stderr: u64,
    ) -> PortFuture<'a, ()> {
        self.with(|world| world.archive_some(job));
        Box::pin(async {})
    }

    fn exec_wrote(&self, _exec: &ExecId, _stdout: u64, _stderr: u64) {}

    fn answer(&self, owner: JobOwner, wish: JobToolRequest) -> PortFuture<'_, JobReport> {
        Box::pin(async move {
            self.pause(20).await;
            let read = self.with(|world| world.read_jobs(&owner, &wish));
            self.pause(5).await;
            read
        })
    }

    fn admit(&self) -> Result<(), RoomRefusal> {
        let mut world = self.lock();
        if !world.calm && world.rng.chance(10) {
            return Err(RoomRefusal::JobOutput { dir: "/".into(), free: 1, keep_free: 2 });
        }
        Ok(())
    }
}
