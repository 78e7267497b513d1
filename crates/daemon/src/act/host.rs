//! The surroundings of acting on this host: SQLite, providers, the store of images, and the files of agents.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use lodge_core::job::JobRow;
use lodge_core::record::{
    AgentFact, AgentRow, FileRecord, ImageRecord, MessageRow, NetworkMode, NetworkRecord,
};
use lodge_core::sandbox::{SandboxExecRow, SandboxFact};
use lodge_core::{AgentId, ExecId, JobId, SandboxId, SessionId, Timestamp};
use lodge_engine::jobs::{JobReport, JobToolRequest};
use lodge_engine::{ModelFailure, ModelOrder, SandboxPlan};
use lodge_exec::{KeeperSecret, Network, PrivateRoot, SandboxSpec, StoredProgram};
use lodge_image::Pins;
use lodge_model::{CallContext, ModelRequest, Providers, Redactor, ResolvedModel};
use lodge_store::{ReadError, Reader, StoreSnapshot};
use tokio::sync::Semaphore;

use super::layout::Layout;
use super::model::{final_failure, model_failure};
use super::ports::{
    AgentFiles, AgentImages, Clock, ComputeThreads, FoundModel, ImagePins, JobOutputs, JobOwner, ModelCalls,
    ModelReply, ObtainedImages, PortFuture, PrepareError, PullFailure, ReadSize, WorkRead, WorkReads,
    WorkStore,
};
use super::root::RootError;
use super::{notes, root};
use crate::chain;
use crate::compute::{Charge, Compute, ComputeError};
use crate::crash;
use crate::host_etc::HostEtc;
use crate::host_trees::HostTrees;
use crate::images::{AgentNeeds, CheckedPrograms, Images};
use crate::room::{Room, RoomRefusal};
use crate::shell::{Shell, now};

/// The assumed size of a conversation whose size is unknown.
const CONVERSATION_BYTES: u64 = 64 << 10;

#[derive(Debug)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        now()
    }
}

/// The daemon's store.
#[derive(Debug)]
pub struct StoreReads {
    pub reader: Arc<Reader>,
    pub compute: Arc<Compute>,
}

impl WorkStore for StoreReads {
    fn read(&self, size: ReadSize, read: WorkRead) -> PortFuture<'_, Result<(), ComputeError>> {
        let on_snapshot = move |store: &dyn StoreSnapshot| Ok(read(&WorkSnapshot(store)));
        match size {
            ReadSize::Few if self.reader.is_near() => {
                let done = self.reader.here(on_snapshot);
                Box::pin(async move { Ok(done.map(drop)?) })
            }
            ReadSize::Few | ReadSize::Row => Box::pin(async move {
                let here = crate::suspects::current();
                let marked = move |store: &dyn StoreSnapshot| {
                    let _mark = here.as_ref().map(crate::suspects::SuspectWatch::mark);
                    on_snapshot(store)
                };
                Ok(self.reader.read(marked).await.map(drop)?)
            }),
            ReadSize::Conversation { agent, bytes } => Box::pin(async move {
                let reader = self.reader.clone();
                let work = move |charge: &Charge| -> Result<(), ReadError> {
                    let read = reader.here(on_snapshot)?;
                    if bytes.is_none() {
                        charge.add(read);
                    }
                    Ok(())
                };
                let announced = usize::try_from(bytes.unwrap_or(CONVERSATION_BYTES)).unwrap_or(usize::MAX);
                Ok(self.compute.run(agent.as_str(), announced, work).await??)
            }),
        }
    }
}

/// The reads of a snapshot that acting uses.
struct WorkSnapshot<'s>(&'s dyn StoreSnapshot);

impl WorkReads for WorkSnapshot<'_> {
    fn agent_fact(&self, id: &AgentId) -> Result<Option<AgentFact>, ReadError> {
        self.0.agent_fact(id)
    }

    fn image(&self, digest: &str) -> Result<Option<ImageRecord>, ReadError> {
        self.0.image(digest)
    }

    fn has_live_turn(&self, agent: &AgentId) -> Result<bool, ReadError> {
        self.0.has_live_turn(agent)
    }

    fn has_unarchived_job(&self, agent: &AgentId) -> Result<bool, ReadError> {
        self.0.has_unarchived_job(agent)
    }

    fn job_to_start(&self, id: &JobId) -> Result<Option<(JobRow, Vec<u8>)>, ReadError> {
        self.0.job_to_start(id)
    }

    fn sandbox_fact(&self, id: &SandboxId) -> Result<Option<SandboxFact>, ReadError> {
        self.0.sandbox_fact(id)
    }

    fn exec(&self, id: &ExecId) -> Result<Option<SandboxExecRow>, ReadError> {
        self.0.exec(id)
    }

    fn exec_to_start(&self, id: &ExecId) -> Result<Option<(SandboxExecRow, Vec<u8>)>, ReadError> {
        self.0.exec_to_start(id)
    }

    fn newest_message(&self, session: &SessionId) -> Result<u64, ReadError> {
        self.0.newest_message(session)
    }

    fn context(&self, session: &SessionId, from: u32, upto: u32) -> Result<Vec<MessageRow>, ReadError> {
        self.0.context(session, from, upto)
    }

    fn summary(&self, session: &SessionId, epoch: u32) -> Result<Option<String>, ReadError> {
        self.0.summary(session, epoch)
    }
}

impl ComputeThreads for Arc<Compute> {
    fn run<'a>(
        &'a self,
        caller: &'a str,
        bytes: usize,
        work: Box<dyn FnOnce(&Charge) + Send>,
    ) -> PortFuture<'a, Result<(), ComputeError>> {
        Box::pin(Compute::run(self, caller, bytes, work))
    }
}

/// The providers of `providers.yaml`.
#[derive(Debug)]
pub struct ProviderCalls {
    pub providers: Providers,
    pub calls: CallContext,
    pub data_dir: PathBuf,
}

impl ModelCalls for ProviderCalls {
    fn check(&self, model: &str) -> Result<(), String> {
        let Err(error) = self.providers.resolve(model) else { return Ok(()) };
        let hint = error.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
        Err(format!("{}{hint}", chain(&error)))
    }

    fn find<'a>(&'a self, order: &'a ModelOrder) -> Result<Box<dyn FoundModel + 'a>, ModelFailure> {
        let resolved = self.providers.resolve(&order.model);
        let resolved = resolved.map_err(|error| final_failure(error.code(), &chain(&error), error.hint()))?;
        let data = root::root_of(&self.data_dir, &order.agent).join("etc/data");
        Ok(Box::new(ProviderCall { resolved, context: self.calls.at(data) }))
    }

    fn redactor(&self) -> Arc<Redactor> {
        self.providers.redactor()
    }
}

/// One call of a provider, with the keys of the same version of `providers.yaml`.
struct ProviderCall {
    resolved: ResolvedModel,
    context: CallContext,
}

impl FoundModel for ProviderCall {
    fn redactor(&self) -> Arc<Redactor> {
        self.resolved.redactor.clone()
    }

    fn call<'a>(
        &'a self,
        request: ModelRequest,
        on_text: &'a mut (dyn FnMut(&str) + Send),
    ) -> PortFuture<'a, Result<ModelReply, ModelFailure>> {
        Box::pin(async move {
            let ResolvedModel { provider, model, .. } = &self.resolved;
            let request = ModelRequest { model: model.clone(), ..request };
            let called = lodge_model::call(provider, &request, &self.context, on_text).await;
            let answer = called.map_err(|error| model_failure(&error, provider.retry_for()))?;
            let micro_usd = provider.cost(&request.model, &answer.usage);
            Ok(ModelReply { answer, micro_usd })
        })
    }
}

impl ImagePins for Pins {}

impl AgentImages for Arc<Images> {
    fn obtain<'a>(&'a self, row: &'a AgentRow) -> PortFuture<'a, Result<ObtainedImages, PullFailure>> {
        Box::pin(async move {
            match self.obtain_needs(row).await {
                Ok(AgentNeeds { rows, tools, runtime, pins }) => {
                    Ok(ObtainedImages { rows, tools, runtime, pins: Box::new(pins) })
                }
                Err(error) => Err(PullFailure { detail: error.in_one_line(), again: error.again() }),
            }
        })
    }

    fn collect(&self) -> PortFuture<'static, ()> {
        Box::pin(Images::collect(self.clone()))
    }
}

/// The files of agents in the state directory.
#[derive(Debug)]
pub struct HostFiles {
    pub data_dir: PathBuf,
    pub images: Arc<Images>,
    pub room: Arc<Room>,
    /// The copy of the host's `/etc` that agents see.
    pub host_etc: Arc<HostEtc>,
    /// The stock runtime.
    pub runtime: Arc<StoredProgram>,
    pub starting: Arc<Semaphore>,
}

impl AgentFiles for HostFiles {
    fn prepare<'a>(
        &'a self,
        plan: &'a SandboxPlan,
        image: &'a ImageRecord,
        secret: KeeperSecret,
    ) -> PortFuture<'a, Result<SandboxSpec, PrepareError>> {
        Box::pin(self.prepare_root(plan, image, secret))
    }

    fn describe<'a>(
        &'a self,
        layout: &'a Layout,
        plan: &'a SandboxPlan,
        image: &'a ImageRecord,
    ) -> PortFuture<'a, Result<(), String>> {
        let root = root::root_of(&self.data_dir, &plan.agent);
        let (layout, plan, image) = (layout.clone(), plan.clone(), image.clone());
        let stock = self.runtime.clone();
        Box::pin(blocking(move || {
            let runtime = stock.path().map_err(|error| chain(&error))?;
            let host = HostTrees::default();
            let inputs = root::RootInputs { plan: &plan, image: &image, runtime, host: &host };
            root::describe(&root, &layout, &inputs).map_err(|error| chain(&error))
        }))
    }

    fn remove<'a>(&'a self, agent: &'a AgentId) -> PortFuture<'a, Result<(), String>> {
        let (data_dir, agent) = (self.data_dir.clone(), agent.clone());
        Box::pin(blocking(move || root::remove(&data_dir, &agent).map_err(|error| chain(&error))))
    }

    fn append_log<'a>(&'a self, agent: &'a AgentId, line: String) -> PortFuture<'a, Result<(), String>> {
        let (dir, name) = (self.data_dir.join("logs"), format!("{agent}.log"));
        Box::pin(blocking(move || notes::append(&dir, &name, &line).map_err(|error| error.to_string())))
    }
}

impl HostFiles {
    async fn prepare_root(
        &self,
        plan: &SandboxPlan,
        image: &ImageRecord,
        secret: KeeperSecret,
    ) -> Result<SandboxSpec, PrepareError> {
        let failed = PrepareError::Failed;
        let checked = self.images.check_programs(&plan.settings).await;
        let mut checked: CheckedPrograms =
            checked.map_err(|error| PrepareError::Incomplete(error.in_one_line()))?;
        let root = root::root_of(&self.data_dir, &plan.agent);
        let stock = self.runtime.verified().map_err(|error| failed(chain(&error)))?;
        let runtime = stock.path();
        checked.insert(runtime.to_owned(), stock.identity());
        let (name, image_name) = (&plan.name, &plan.image);
        if let Some(program) = HostTrees::lost_program(&plan.settings) {
            return Err(failed(format!(
                "the program {} is not there any more, or cannot be executed; install it and run `lodge start {name}`, or \
                 run `lodge agent update {name} --image {image_name}` to have it looked for again",
                program.display()
            )));
        }
        let host_trees = HostTrees::of(&plan.settings, &self.data_dir);
        host_trees.check(&plan.settings, &self.data_dir).map_err(|error| {
            failed(format!(
                "{error}; if that is intended, run `lodge agent update {name} --image {image_name}`"
            ))
        })?;
        let spec = SandboxSpec {
            id: plan.sandbox.as_str().to_owned(),
            incarnation: plan.incarnation,
            secret,
            root: root.clone(),
            private_root: Some(PrivateRoot {
                hostname: root::hostname(&plan.name),
                host_trees: host_trees.trees.clone(),
                writable: root::THEIRS.map(PathBuf::from).into(),
                host_etc: Some(self.host_etc.dir().to_owned()),
            }),
            uid: plan.uid,
            binds: root::binds(&root, plan, runtime, &checked),
            network: network_of(plan.settings.network.as_ref()),
            limits: crate::limits::of_sandbox(plan.settings.limits, &self.data_dir),
            log: root::log_of(&self.data_dir, &plan.agent),
            logs: None,
            failpoint: crash::keeper_point(),
        };
        let make = || self.make_root(&root, plan, image, runtime, &host_trees);
        match make().await {
            // The missing part is pulled again if a registry has it.
            Err(incomplete @ PrepareError::Incomplete(_)) => {
                let Ok(_pins) = self.images.repair(&plan.image, &plan.image_digest).await else {
                    return Err(incomplete);
                };
                make().await?;
            }
            made => made?,
        }
        Ok(spec)
    }

    async fn make_root(
        &self,
        root: &Path,
        plan: &SandboxPlan,
        image: &ImageRecord,
        runtime: &Path,
        host: &HostTrees,
    ) -> Result<(), PrepareError> {
        let (root, plan, image, runtime) = (root.to_owned(), plan.clone(), image.clone(), runtime.to_owned());
        let (images, room, host_etc) = (self.images.clone(), self.room.clone(), self.host_etc.clone());
        let host = host.clone();
        let make = move || {
            let files = root::FileSource {
                contents: &|file: &FileRecord| images.contents(file).map_err(|error| error.in_one_line()),
                room: &|bytes| room.spares(bytes),
            };
            let of_host = |cause| RootError::Io { path: host_etc.dir().to_owned(), cause };
            host_etc.refresh().map_err(of_host)?;
            let inputs = root::RootInputs { plan: &plan, image: &image, runtime: &runtime, host: &host };
            root::make(&root, &inputs, &files)
        };
        // Bounded, because each creation occupies a thread. The semaphore is never closed.
        let _slot = self.starting.acquire().await.ok();
        match tokio::task::spawn_blocking(make).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error @ RootError::Contents { .. })) => Err(PrepareError::Incomplete(chain(&error))),
            Ok(Err(error)) => Err(PrepareError::Failed(chain(&error))),
            Err(error) => Err(PrepareError::Failed(error.to_string())),
        }
    }
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(error.to_string()))
}

/// The network of the sandbox. An unknown mode of a newer release becomes the narrowest one.
pub(super) fn network_of(record: Option<&NetworkRecord>) -> Network {
    let Some(record) = record else { return Network::Host };
    match record.reach() {
        NetworkMode::Host => Network::Host,
        NetworkMode::None => Network::None,
        NetworkMode::Public => Network::Public,
        NetworkMode::Lan => Network::Lan,
        NetworkMode::List => Network::List { allow: record.allow.clone() },
    }
}

/// The archive of this daemon, its followers, and its space on disk.
#[derive(Debug)]
pub struct ShellJobs(pub Weak<Shell>);

impl JobOutputs for ShellJobs {
    fn archive(&self, job: &JobId) {
        if let Some(shell) = self.0.upgrade() {
            shell.jobs.archive(job);
        }
    }

    fn remove(&self, jobs: Vec<JobId>) {
        if let Some(shell) = self.0.upgrade() {
            shell.jobs.remove(jobs);
        }
    }

    fn archived(&self, agent: &AgentId) {
        if let Some(shell) = self.0.upgrade() {
            crate::jobs::settled(&shell, agent);
        }
    }

    fn wrote<'a>(
        &'a self,
        agent: &'a AgentId,
        job: &'a JobId,
        stdout: u64,
        stderr: u64,
    ) -> PortFuture<'a, ()> {
        let shell = self.0.upgrade();
        Box::pin(async move {
            if let Some(shell) = shell {
                shell.job_wrote(agent, job, stdout, stderr).await;
            }
        })
    }

    fn exec_wrote(&self, exec: &ExecId, stdout: u64, stderr: u64) {
        if let Some(shell) = self.0.upgrade() {
            shell.jobs.exec_wrote(exec, stdout, stderr);
        }
    }

    fn answer(&self, owner: JobOwner, wish: JobToolRequest) -> PortFuture<'_, JobReport> {
        let shell = self.0.upgrade();
        Box::pin(async move {
            match shell {
                Some(shell) => crate::jobs::answer(shell, owner, wish).await,
                None => JobReport {
                    text: "the daemon is about to exit".to_owned(),
                    error: true,
                    told: Vec::new(),
                },
            }
        })
    }

    fn admit(&self) -> Result<(), RoomRefusal> {
        self.0.upgrade().map_or(Ok(()), |shell| shell.admit_job())
    }
}
