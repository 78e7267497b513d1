//! The shell around the engine: queues, tickets, and everything the parts of the daemon share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lodge_core::{AgentId, Timestamp};
use lodge_model::{CallContext, Providers};
use lodge_proto::LayerView;
use lodge_store::{Reader, Search};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::act::Actors;
use crate::auth::Access;
use crate::compute::Compute;
use crate::config::Config;
use crate::host_etc::HostEtc;
use crate::hub::Hub;
use crate::images::Images;
use crate::jobs::Jobs;
use crate::log::LogLevel;
use crate::room::{Needs, Room, RoomRefusal};
use crate::suspects::Suspects;
use crate::tasks::{TaskKind, named};
use crate::tls::Tls;
use crate::view::Living;
use lodge_engine::{Answer, Command, Effect, Input, JobCommand, Refusal, RequestKey, Seen, Ticket};

/// Inputs that may wait for the engine. Clients are refused beyond it; observations wait.
pub const ENGINE_QUEUE_MAX: usize = 1_024;

/// Changes that are prepared at once; more of them wait. What one waits for needs a thread too: were all threads taken by
/// those that wait, nothing would go on.
const PREPARING_MAX: usize = 32;
/// Sandboxes that are started at once; more of them wait. A thousand at once would each take longer than is waited for.
const STARTING_MAX: usize = 16;
/// Archives that come or go at once; more of them wait.
const ARCHIVES_MAX: usize = 16;

/// What all parts of the daemon share.
#[derive(Debug)]
pub struct Shell {
    pub config: Config,
    pub level: LogLevel,
    pub epoch: u64,
    pub log: String,
    pub state_key: StateKey,
    pub reader: Arc<Reader>,
    pub hub: Hub,
    pub room: Arc<Room>,
    pub images: Arc<Images>,
    /// Changes that are prepared now, each on a thread that may wait for a registry.
    pub preparing: Semaphore,
    /// Sandboxes that are started now.
    pub starting: Semaphore,
    /// Archives that come or go now, each on a thread that waits for its client.
    pub archives: Arc<Semaphore>,
    /// What is computed now, in the sight of the next daemon.
    pub suspects: Suspects,
    /// Threads for work that needs a processor for a while.
    pub compute: Arc<Compute>,
    /// Who may come in.
    pub access: Access,
    pub providers: Providers,
    pub calls: CallContext,
    pub executor: Arc<dyn lodge_exec::Executor>,
    /// What agents have of the host's `/etc`.
    pub host_etc: HostEtc,
    pub runtime: lodge_exec::StoredProgram,
    /// No more requests are taken.
    pub stop: CancellationToken,
    /// Those that were taken are answered or cut: everything ends.
    pub end: CancellationToken,
    /// Every task that is not a connection; the daemon ends after they do, or after its patience.
    pub tasks: TaskTracker,
    pub actors: Actors,
    pub jobs: Jobs,
    /// Held while a file of the operator's is changed on request.
    pub file_changes: tokio::sync::Mutex<()>,
    /// The index for searches, held by the one that is made.
    pub searching: Arc<tokio::sync::Mutex<Search>>,
    /// Held while the sandboxes are swept: two sweeps would take each other's locks for keepers.
    pub sweep: tokio::sync::Mutex<()>,
    pub started_at: Timestamp,
    http: Mutex<Http>,
    /// What the TCP listener shows its clients.
    pub tls: Tls,
    pub layers: tokio::sync::OnceCell<Vec<LayerView>>,
    handle: tokio::runtime::Handle,
    inputs: mpsc::Sender<Input>,
    tickets: Mutex<HashMap<Ticket, oneshot::Sender<Result<Answer, AskError>>>>,
    next_ticket: AtomicU64,
    living: Mutex<HashMap<AgentId, Arc<Living>>>,
}

/// The TCP listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Http {
    /// None is wanted.
    Off,
    Listening {
        addr: String,
        scheme: Scheme,
    },
    /// Something else listens there; the address is tried again until it is free.
    Taken {
        addr: String,
        reason: String,
    },
    /// TLS is wanted, and its files cannot be used; they are read again at a reload.
    NoCertificate {
        addr: String,
        reason: String,
        hint: String,
    },
}

/// What is spoken on the TCP listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    Http,
    Https,
}

impl Http {
    /// Where it listens.
    pub fn addr(&self) -> Option<&str> {
        match self {
            Http::Listening { addr, .. } => Some(addr),
            Http::Off | Http::Taken { .. } | Http::NoCertificate { .. } => None,
        }
    }

    /// Where it listens, as clients write it.
    pub fn url(&self) -> Option<String> {
        match self {
            Http::Listening { addr, scheme: Scheme::Http } => Some(format!("http://{addr}")),
            Http::Listening { addr, scheme: Scheme::Https } => Some(format!("https://{addr}")),
            Http::Off | Http::Taken { .. } | Http::NoCertificate { .. } => None,
        }
    }

    /// What somebody should look at.
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

/// What is made before the shell and goes into it.
#[derive(Debug)]
pub struct Parts {
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

impl Shell {
    pub fn new(parts: Parts, inputs: mpsc::Sender<Input>) -> Arc<Shell> {
        let providers = Providers::open(parts.config.data_dir.join("providers.yaml"));
        // Read once now, so that there is a good copy should the file break later.
        if let Some(error) = providers.last_error() {
            tracing::warn!(event = "providers.broken", error = %error);
        }
        let host_etc = HostEtc::new(&parts.config.data_dir);
        let (reader, room) = (Arc::new(parts.reader), Arc::new(parts.room));
        Arc::new(Shell {
            images: Images::of(&parts.config.data_dir, reader.clone(), room.clone()),
            preparing: Semaphore::new(PREPARING_MAX),
            starting: Semaphore::new(STARTING_MAX),
            archives: Arc::new(Semaphore::new(ARCHIVES_MAX)),
            compute: Arc::default(),
            calls: CallContext::new(parts.config.data_dir.clone()),
            jobs: Jobs::new(&parts.config.data_dir),
            searching: Arc::new(tokio::sync::Mutex::new(Search::new(
                &parts.config.data_dir.join("search.db"),
                &parts.log,
            ))),
            config: parts.config,
            level: parts.level,
            epoch: parts.epoch,
            log: parts.log,
            state_key: StateKey(parts.state_key),
            reader,
            hub: Hub::new(parts.head),
            room,
            access: parts.access,
            suspects: parts.suspects,
            providers,
            executor: parts.executor,
            host_etc,
            runtime: parts.runtime,
            stop: CancellationToken::new(),
            end: CancellationToken::new(),
            tasks: TaskTracker::new(),
            actors: Actors::default(),
            file_changes: tokio::sync::Mutex::default(),
            sweep: tokio::sync::Mutex::default(),
            started_at: now(),
            http: Mutex::new(Http::Off),
            tls: parts.tls,
            layers: tokio::sync::OnceCell::new(),
            handle: tokio::runtime::Handle::current(),
            inputs,
            tickets: Mutex::default(),
            next_ticket: AtomicU64::new(1),
            living: Mutex::default(),
        })
    }

    /// Asks the engine and waits until the answer is durable.
    pub async fn ask(&self, request: Option<RequestKey>, command: Command) -> Result<Answer, AskError> {
        self.room.admit(Needs::of(&command), now())?;
        if matches!(command, Command::Job(JobCommand::Submit(_))) {
            self.admit_job()?;
        }
        let (ticket, answer) = self.ticket();
        let refused = match self.inputs.try_send(Input::Api { ticket, request, command }) {
            Ok(()) => None,
            Err(mpsc::error::TrySendError::Full(_)) => Some(AskError::QueueFull),
            Err(mpsc::error::TrySendError::Closed(_)) => Some(ShuttingDown.into()),
        };
        if let Some(refused) = refused {
            self.tickets.lock().unwrap_or_else(PoisonError::into_inner).remove(&ticket);
            return Err(refused);
        }
        answer.await.unwrap_or_else(|_| Err(ShuttingDown.into()))
    }

    /// Refuses a job while there is too little room for what it might write.
    pub fn admit_job(&self) -> Result<(), RoomRefusal> {
        self.room.admit_job(self.config.settings().job_keep_free)
    }

    /// A ticket for one answer, which comes when what was decided is durable.
    pub fn ticket(&self) -> (Ticket, oneshot::Receiver<Result<Answer, AskError>>) {
        let ticket = self.next_ticket.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner).insert(ticket, sender);
        (ticket, answer)
    }

    /// Tells the engine what was observed. Waits for room: an observation is never dropped.
    pub async fn tell(&self, seen: Seen) {
        // The engine is gone only when the process is about to be.
        drop(self.inputs.send(Input::Seen(seen)).await);
    }

    /// As `tell`, for a thread of its own.
    pub fn tell_blocking(&self, seen: Seen) {
        // As above.
        drop(self.inputs.blocking_send(Input::Seen(seen)));
    }

    /// Gives back memory that only saves time. Everything the engine decided up to that many requests is readable.
    pub fn rest(&self, requests: u64) {
        self.hub.rest();
        self.reader.rest();
        self.jobs.rest();
        self.settled(requests, true);
    }

    /// Tells the engine how many requests are on disk. Without room in the queue it hears of it the next time.
    pub fn settled(&self, requests: u64, rest: bool) {
        drop(self.inputs.try_send(Input::Seen(Seen::Settled { requests, rest })));
    }

    /// Hands an answer to whoever holds the ticket. A caller that went away is no error.
    pub fn answer(&self, ticket: Ticket, reply: Result<Answer, AskError>) {
        let waiting = self.tickets.lock().unwrap_or_else(PoisonError::into_inner).remove(&ticket);
        if let Some(waiting) = waiting {
            drop(waiting.send(reply));
        }
    }

    pub fn act(self: &Arc<Self>, effect: Effect) {
        crate::act::act(self, effect);
    }

    /// Told when the TCP listener is bound, or cannot be.
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

    pub fn living(&self, agent: &AgentId) -> Option<Arc<Living>> {
        self.living.lock().unwrap_or_else(PoisonError::into_inner).get(agent).cloned()
    }

    pub fn set_living(&self, agent: &AgentId, living: Option<Arc<Living>>) {
        let mut all = self.living.lock().unwrap_or_else(PoisonError::into_inner);
        match living {
            Some(living) => drop(all.insert(agent.clone(), living)),
            None => drop(all.remove(agent)),
        }
    }

    /// What is known of every live sandbox.
    pub fn all_living(&self) -> Vec<(AgentId, Arc<Living>)> {
        let all = self.living.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|(agent, living)| (agent.clone(), living.clone())).collect()
    }

    /// Forgets what was known of a sandbox, unless another one took its place. True: it was forgotten.
    pub fn forget_living(&self, agent: &AgentId, seen: &Arc<Living>) -> bool {
        let mut all = self.living.lock().unwrap_or_else(PoisonError::into_inner);
        let same = all.get(agent).is_some_and(|living| Arc::ptr_eq(living, seen));
        same && all.remove(agent).is_some()
    }

    /// Starts a task that ends with the daemon. What happens if it fails: see `TaskKind`.
    pub fn spawn(&self, kind: TaskKind, future: impl Future<Output = ()> + Send + 'static) {
        let end = self.end.clone();
        // Moved into the task as it is, it would take its room there twice, for every agent.
        let future = Box::pin(future);
        let task = async move {
            tokio::select! {
                () = end.cancelled() => {}
                () = future => {}
            }
        };
        self.tasks.spawn_on(named(kind, task), &self.handle);
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

    /// Why, where something else is to blame.
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

    /// Whether the disk has no room to record the answer.
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
