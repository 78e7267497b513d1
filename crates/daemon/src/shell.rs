//! The shell around the engine: queues, tickets, and the state that all parts of the daemon share.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lodge_core::Timestamp;
use lodge_model::{CallContext, Providers};
use lodge_proto::LayerView;
use lodge_store::{Reader, Search};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::act::host::{HostFiles, ProviderCalls, ShellJobs, StoreReads, SystemClock};
use crate::act::{ActContext, ActParts, ActPorts, InputRefusal, starting_slots};
use crate::auth::Access;
use crate::compute::Compute;
use crate::config::Config;
use crate::host_etc::HostEtc;
use crate::images::Images;
use crate::jobs::Jobs;
use crate::log::LogLevel;
use crate::room::{DiskNeed, Room, RoomRefusal};
use crate::suspects::Suspects;
use crate::tls::Tls;
use lodge_engine::{
    AgentCommand, Answer, Command, Input, JobCommand, Observation, Refusal, RequestKey, Ticket,
};

/// Inputs that may wait for the engine. Clients are refused beyond it; observations wait.
pub const ENGINE_QUEUE_MAX: usize = 1_024;

/// Changes that are prepared at once; others wait. A preparation occupies a blocking thread and may wait for work on another
/// one, so without a limit they could take all threads and deadlock.
const PREPARING_MAX: usize = 32;
/// Imports and exports at once; others wait.
const ARCHIVES_MAX: usize = 16;

/// The state that all parts of the daemon share. The part that acting uses is reached by `Deref`.
#[derive(Debug)]
pub struct Shell {
    context: Arc<ActContext>,
    pub level: LogLevel,
    pub log: String,
    pub reader: Arc<Reader>,
    pub room: Arc<Room>,
    pub images: Arc<Images>,
    /// Slots of changes that are being prepared, each on a thread that may wait for a registry.
    pub preparing: Semaphore,
    /// Slots of imports and exports, each on a thread that waits for its client.
    pub archives: Arc<Semaphore>,
    /// Threads for CPU-bound work.
    pub compute: Arc<Compute>,
    models: Arc<ProviderCalls>,
    /// The copy of the host's `/etc` that agents see.
    pub host_etc: Arc<HostEtc>,
    /// Agents are being stopped, and no agent may start.
    starts_refused: AtomicBool,
    /// Cancelled when no more requests are accepted.
    pub stop: CancellationToken,
    pub jobs: Jobs,
    /// Locked while a request changes a file of the operator.
    pub file_changes: tokio::sync::Mutex<()>,
    /// The search index, locked by the running search.
    pub searching: Arc<tokio::sync::Mutex<Search>>,
    /// Locked during a sweep of the sandboxes: a sweep would mistake the locks of another one for keepers.
    pub sweep: tokio::sync::Mutex<()>,
    pub started_at: Timestamp,
    http: Mutex<Http>,
    /// The certificate of the TCP listener.
    pub tls: Tls,
    pub layers: tokio::sync::OnceCell<Vec<LayerView>>,
    tickets: Mutex<HashMap<Ticket, oneshot::Sender<Result<Answer, AskError>>>>,
    next_ticket: AtomicU64,
}

impl std::ops::Deref for Shell {
    type Target = Arc<ActContext>;

    fn deref(&self) -> &Arc<ActContext> {
        &self.context
    }
}

/// The state of the TCP listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Http {
    /// Not configured.
    Off,
    Listening {
        addr: String,
        scheme: Scheme,
    },
    /// Another process has the address. The daemon retries until it is free.
    Taken {
        addr: String,
        reason: String,
    },
    /// TLS is configured and its files cannot be used. A reload reads them again.
    NoCertificate {
        addr: String,
        reason: String,
        hint: String,
    },
}

/// The scheme of the TCP listener's URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    Http,
    Https,
}

impl Http {
    /// The address it listens on.
    pub fn addr(&self) -> Option<&str> {
        match self {
            Http::Listening { addr, .. } => Some(addr),
            Http::Off | Http::Taken { .. } | Http::NoCertificate { .. } => None,
        }
    }

    /// The URL that clients connect to.
    pub fn url(&self) -> Option<String> {
        match self {
            Http::Listening { addr, scheme: Scheme::Http } => Some(format!("http://{addr}")),
            Http::Listening { addr, scheme: Scheme::Https } => Some(format!("https://{addr}")),
            Http::Off | Http::Taken { .. } | Http::NoCertificate { .. } => None,
        }
    }

    /// A problem that the operator should fix.
    pub fn warning(&self) -> Option<String> {
        match self {
            Http::Off | Http::Listening { .. } => None,
            Http::Taken { addr, reason } => Some(format!(
                "http: {addr} cannot be listened on ({reason}); the daemon tries again until it can, and until then only the \
                 Unix socket is served"
            )),
            Http::NoCertificate { addr, reason, hint } => Some(format!(
                "http: {addr} is not served, because TLS is wanted and its certificate cannot be used ({reason}): {hint}"
            )),
        }
    }
}

/// The key of the state directory; never printed.
pub struct StateKey(pub [u8; 32]);

impl std::fmt::Debug for StateKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[secret]")
    }
}

/// The parts that a shell is built from.
#[derive(Debug)]
pub struct ShellParts {
    pub config: Config,
    pub level: LogLevel,
    pub epoch: u64,
    pub log: String,
    pub state_key: [u8; 32],
    pub reader: Reader,
    pub head: u64,
    pub room: Room,
    pub access: Access,
    pub executor: Arc<dyn lodge_exec::Executor>,
    pub runtime: lodge_exec::StoredProgram,
    pub suspects: Suspects,
    pub tls: Tls,
}

/// The providers of `providers.yaml`, which is read now, so that a valid copy exists if the file becomes invalid later.
fn open_providers(data_dir: &Path) -> Providers {
    let providers = Providers::open(data_dir.join("providers.yaml"));
    if let Some(error) = providers.last_error() {
        tracing::warn!(event = "providers.broken", error = %error);
    }
    providers
}

impl Shell {
    pub fn new(parts: ShellParts, inputs: mpsc::Sender<Input>) -> Arc<Shell> {
        let data_dir = parts.config.data_dir.clone();
        let (reader, room) = (Arc::new(parts.reader), Arc::new(parts.room));
        let images = Images::of(&data_dir, reader.clone(), room.clone());
        let (compute, host_etc): (Arc<Compute>, _) = (Arc::default(), Arc::new(HostEtc::new(&data_dir)));
        let models = Arc::new(ProviderCalls {
            providers: open_providers(&data_dir),
            calls: CallContext::new(data_dir.clone()),
            data_dir: data_dir.clone(),
        });
        let starting = starting_slots();
        let files = Arc::new(HostFiles {
            data_dir: data_dir.clone(),
            images: images.clone(),
            room: room.clone(),
            host_etc: host_etc.clone(),
            runtime: Arc::new(parts.runtime),
            starting: starting.clone(),
        });
        let searching = Search::new(&data_dir.join("search.db"), &parts.log);
        Arc::new_cyclic(|shell| {
            let ports = ActPorts {
                clock: Arc::new(SystemClock),
                executor: parts.executor,
                store: Arc::new(StoreReads { reader: reader.clone(), compute: compute.clone() }),
                threads: Arc::new(compute.clone()),
                models: models.clone(),
                agent_images: Arc::new(images.clone()),
                files: files.clone(),
                sandbox_files: files,
                outputs: Arc::new(ShellJobs(shell.clone())),
            };
            let context = ActContext::new(ActParts {
                config: Arc::new(parts.config),
                epoch: parts.epoch,
                state_key: parts.state_key,
                head: parts.head,
                suspects: parts.suspects,
                access: Arc::new(parts.access),
                starting,
                ports,
                inputs,
            });
            Shell {
                context,
                level: parts.level,
                log: parts.log,
                reader,
                room,
                images,
                preparing: Semaphore::new(PREPARING_MAX),
                archives: Arc::new(Semaphore::new(ARCHIVES_MAX)),
                compute,
                models,
                host_etc,
                starts_refused: AtomicBool::new(false),
                stop: CancellationToken::new(),
                jobs: Jobs::new(&data_dir),
                file_changes: tokio::sync::Mutex::default(),
                searching: Arc::new(tokio::sync::Mutex::new(searching)),
                sweep: tokio::sync::Mutex::default(),
                started_at: now(),
                http: Mutex::new(Http::Off),
                tls: parts.tls,
                layers: tokio::sync::OnceCell::new(),
                tickets: Mutex::default(),
                next_ticket: AtomicU64::new(1),
            }
        })
    }

    pub fn providers(&self) -> &Providers {
        &self.models.providers
    }

    /// The state that all model calls share.
    pub fn calls(&self) -> &CallContext {
        &self.models.calls
    }

    /// Sends a command to the engine, and waits until the answer is durable.
    pub async fn ask(&self, request: Option<RequestKey>, command: Command) -> Result<Answer, AskError> {
        if starts_agent(&command) && self.starts_refused.load(Ordering::Acquire) {
            return Err(ShuttingDown.into());
        }
        self.room.admit(DiskNeed::of(&command), now())?;
        if matches!(command, Command::Job(JobCommand::Submit(_))) {
            self.admit_job()?;
        }
        let (ticket, answer) = self.ticket();
        let refused = match self.try_input(Input::Api { ticket, request, command }) {
            Ok(()) => None,
            Err(InputRefusal::QueueFull) => Some(AskError::QueueFull),
            Err(InputRefusal::Closed) => Some(ShuttingDown.into()),
        };
        if let Some(refused) = refused {
            self.tickets.lock().unwrap_or_else(PoisonError::into_inner).remove(&ticket);
            return Err(refused);
        }
        answer.await.unwrap_or_else(|_| Err(ShuttingDown.into()))
    }

    /// Refuses commands that start an agent, until [`Shell::allow_starts`].
    pub fn refuse_starts(&self) {
        self.starts_refused.store(true, Ordering::Release);
    }

    pub fn allow_starts(&self) {
        self.starts_refused.store(false, Ordering::Release);
    }

    /// Refuses a job while there is too little space for its output.
    pub fn admit_job(&self) -> Result<(), RoomRefusal> {
        self.room.admit_job(self.config.settings().job_keep_free)
    }

    /// A ticket for one answer. The answer arrives when the decision is durable.
    pub fn ticket(&self) -> (Ticket, oneshot::Receiver<Result<Answer, AskError>>) {
        let ticket = self.next_ticket.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner).insert(ticket, sender);
        (ticket, answer)
    }

    /// Frees caches while the daemon is idle. All decisions up to this request are on disk.
    pub fn free_caches(&self, requests: u64) {
        self.hub.rest();
        self.reader.rest();
        self.jobs.rest();
        self.report_settled(requests, true);
    }

    /// Reports to the engine how many requests and events are on disk. If the queue is full, the next report includes it.
    pub fn report_settled(&self, requests: u64, rest: bool) {
        let seq = self.hub.head();
        let input = Input::Seen(Observation::Settled { requests, seq, rest });
        if self.try_input(input).is_err() {
            tracing::debug!(event = "engine.busy");
        }
    }

    /// Sends the answer to the caller with this ticket. A caller that has left is not an error.
    pub fn answer(&self, ticket: Ticket, reply: Result<Answer, AskError>) {
        let waiting = self.tickets.lock().unwrap_or_else(PoisonError::into_inner).remove(&ticket);
        if let Some(waiting) = waiting {
            drop(waiting.send(reply));
        }
    }

    /// Records the state of the TCP listener, and logs it.
    pub fn set_http(&self, http: Http) {
        match &http {
            Http::Off => {}
            Http::Listening { addr, scheme } => {
                tracing::info!(event = "http.listening", addr, tls = *scheme == Scheme::Https);
            }
            Http::Taken { addr, reason } => tracing::warn!(event = "http.taken", addr, reason),
            Http::NoCertificate { addr, reason, hint } => {
                tracing::error!(event = "http.no_certificate", addr, reason, hint);
            }
        }
        *self.http.lock().unwrap_or_else(PoisonError::into_inner) = http;
    }

    pub fn http(&self) -> Http {
        self.http.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn starts_agent(command: &Command) -> bool {
    let Command::Agent(command) = command else { return false };
    match command {
        AgentCommand::Create(_)
        | AgentCommand::Start { .. }
        | AgentCommand::Restart { .. }
        | AgentCommand::SettleLineage(_) => true,
        AgentCommand::Update(_)
        | AgentCommand::Stop { .. }
        | AgentCommand::Kill { .. }
        | AgentCommand::Remove { .. } => false,
    }
}

/// Why a request to the engine was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Room(#[from] RoomRefusal),
    #[error("{ENGINE_QUEUE_MAX} requests wait already")]
    QueueFull,
    #[error(transparent)]
    ShuttingDown(#[from] ShuttingDown),
}

impl AskError {
    /// Stable, documented, never reused.
    pub fn code(&self) -> &'static str {
        match self {
            AskError::Refused(refusal) => refusal.code(),
            AskError::Room(refusal) => refusal.code(),
            AskError::QueueFull => "daemon.busy",
            AskError::ShuttingDown(error) => error.code(),
        }
    }

    /// The underlying cause, if there is one.
    pub fn cause(&self) -> Option<String> {
        match self {
            AskError::Refused(refusal) => refusal.cause().map(str::to_owned),
            AskError::Room(refusal) => refusal.cause(),
            AskError::QueueFull => None,
            AskError::ShuttingDown(error) => error.cause(),
        }
    }

    /// What to do next.
    pub fn hint(&self) -> Option<String> {
        match self {
            AskError::Refused(refusal) => refusal.hint(),
            AskError::Room(refusal) => refusal.hint(),
            AskError::QueueFull => Some("ask again in a moment".to_owned()),
            AskError::ShuttingDown(error) => error.hint(),
        }
    }

    /// Whether the disk has no space to record the answer.
    pub fn is_disk_full(&self) -> bool {
        matches!(
            self,
            AskError::Refused(Refusal::NotRecorded)
                | AskError::Room(RoomRefusal::ReadOnly | RoomRefusal::Low { .. })
        )
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the daemon is about to exit")]
pub struct ShuttingDown;

impl ShuttingDown {
    pub fn code(self) -> &'static str {
        "daemon.shutting_down"
    }

    pub fn cause(self) -> Option<String> {
        None
    }

    pub fn hint(self) -> Option<String> {
        Some("send it again; the next daemon takes it".to_owned())
    }
}

/// The wall clock.
pub fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Timestamp::from_ms(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
