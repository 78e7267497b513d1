//! The daemon's life: take the lock, load, recover, open the doors, wait, close.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};

use lodge_core::quarantine::{Suspect, WorkKind, YOUNG_MS};
use lodge_core::record::AgentRow;
use lodge_core::token::TokenRow;
use lodge_core::{AgentId, IdSource};
use lodge_exec::{Executor, ProgramImage, SystemExecutor};
use lodge_store::{OpenError, OpenedDatabase};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::TaskTracker;

use crate::api::{self, Api, ListenError};
use crate::auth::{Access, CREDENTIALS_MS, Gate};
use crate::commit::{self, BATCHES_MAX};
use crate::config::{Config, ExecutorKind};
use crate::crash;
use crate::decide::{Decider, WriterMessage};
use crate::home::{Home, HomeError};
use crate::log::LogLevel;
use crate::room::Room;
use crate::shell::{AskError, ENGINE_QUEUE_MAX, Http, Shell, ShellParts, now};
use crate::store_faults::with_faults;
use crate::suspects::Suspects;
use crate::tasks::TaskKind;
use crate::tls::Tls;
use lodge_engine::{
    Answer, Command, Engine, Host, Input, NewToken, NewTokenHolder, SandboxEffect, TokenCommand,
};

/// The programs of every sandbox, built with the daemon and embedded in it.
// SAFETY: both come from `include_bytes!`.
static KEEPER: ProgramImage = unsafe {
    ProgramImage::embedded(
        include_bytes!(concat!(env!("OUT_DIR"), "/keeper.zlib")),
        include!(concat!(env!("OUT_DIR"), "/keeper.len")),
        include_bytes!(concat!(env!("OUT_DIR"), "/keeper.sha256")),
    )
};
// SAFETY: as above.
static RUNTIME: ProgramImage = unsafe {
    ProgramImage::embedded(
        include_bytes!(concat!(env!("OUT_DIR"), "/runtime.zlib")),
        include!(concat!(env!("OUT_DIR"), "/runtime.len")),
        include_bytes!(concat!(env!("OUT_DIR"), "/runtime.sha256")),
    )
};

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Home(#[from] HomeError),
    #[error(transparent)]
    Store(#[from] lodge_store::OpenError),
    #[error(transparent)]
    Host(#[from] lodge_exec::HostError),
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("no random bytes from the kernel")]
    Entropy {
        #[source]
        cause: std::io::Error,
    },
    #[error("could not sign the operator's token")]
    Token {
        #[source]
        cause: jsonwebtoken::errors::Error,
    },
    #[error("could not issue the operator's token: {refusal}")]
    NoToken { refusal: Box<AskError> },
    #[error("could not issue the operator's token: {missing}")]
    TokenMissing { missing: &'static str },
    #[error("could not start a thread or watch for signals")]
    Process {
        #[source]
        cause: std::io::Error,
    },
    #[error("the docker executor is not part of this release")]
    Docker,
}

impl ServeError {
    pub fn hint(&self) -> Option<String> {
        match self {
            ServeError::Home(error) => Some(error.hint()),
            ServeError::Store(error) => Some(error.hint().to_owned()),
            ServeError::Host(error) => error.hint(),
            ServeError::Listen(error) => Some(error.hint()),
            ServeError::Docker => Some("use --executor system".to_owned()),
            ServeError::NoToken { refusal } => refusal.hint(),
            ServeError::Entropy { .. }
            | ServeError::Token { .. }
            | ServeError::TokenMissing { .. }
            | ServeError::Process { .. } => None,
        }
    }

    /// 75 (try again later): another daemon has the directory.
    pub fn exit_code(&self) -> u8 {
        match self {
            ServeError::Home(HomeError::Taken { .. }) => 75,
            ServeError::Home(_)
            | ServeError::Store(_)
            | ServeError::Host(_)
            | ServeError::Listen(_)
            | ServeError::Entropy { .. }
            | ServeError::Token { .. }
            | ServeError::NoToken { .. }
            | ServeError::TokenMissing { .. }
            | ServeError::Process { .. }
            | ServeError::Docker => 1,
        }
    }
}

/// Runs the daemon until a stop is requested.
pub async fn serve(
    mut config: Config,
    level: LogLevel,
    file_limit: Option<lodge_exec::FileLimit>,
) -> Result<(), ServeError> {
    let settings = config.settings();
    if settings.executor == ExecutorKind::Docker {
        return Err(ServeError::Docker);
    }
    let mut home = Home::take(&config.data_dir)?;
    crash::point("after_lock");
    // Inside a sandbox only the real path exists.
    config.data_dir.clone_from(&home.dir);
    // Before anything is changed, so that an invalid address is reported at once. No request is served before the end
    // of this function.
    let tls = Tls::new(&config);
    let tcp = api::bind_tcp((!settings.no_http).then(|| settings.http_addr.clone()), &tls).await?;
    let (entropy, seed) = entropy()?;
    let room = Room::of(&home.dir);
    let is_full = |error: &OpenError| matches!(error, OpenError::Full { .. });
    let mut opened = room.with_reserve(is_full, || lodge_store::open(&home.database(), &entropy))?;
    crash::point("after_load");
    match room.with_reserve(HomeError::is_full, || home.sign(opened.loaded.epoch)) {
        // Processes that lose the lock report less; readers are served all the same.
        Err(error) if error.is_full() => {
            tracing::warn!(event = "lock.not_signed", error = crate::chain(&error))
        }
        signed => signed?,
    }
    let executor = SystemExecutor::open(&config.data_dir, KEEPER)?.with_file_limit(file_limit);
    // Before any work is begun: some of it may be what ended the last daemon.
    let (suspects, convicted) = Suspects::open(&home.dir, executor.boot_id());
    add_suspected(&mut opened, &convicted);
    let requests = opened.loaded.quarantine.iter().filter(|row| row.work.kind == WorkKind::Request);
    requests.for_each(|row| suspects.refuse(&row.work.subject));
    let runtime = executor.program("runtime", RUNTIME)?;
    let gate = Gate::new(&opened.meta.state_key, &opened.meta.log);
    let kept = kept_token(&home, &gate, &opened.loaded.tokens);
    let (epoch, socket) = (opened.loaded.epoch, config.socket_path());
    let sandboxes = expected_sandboxes(&opened.loaded.agents);
    let about = Host {
        boot: executor.boot_id().to_owned(),
        own_uids: rustix::process::geteuid().is_root(),
        settings: config.engine_settings(),
        render: crate::view::rendered,
    };
    let parts = ShellParts {
        config,
        level,
        epoch,
        log: opened.meta.log.clone(),
        state_key: opened.meta.state_key,
        reader: opened.reader,
        head: opened.loaded.seq,
        room,
        access: Access::of(opened.loaded.tokens.iter().cloned(), now()),
        executor: Arc::new(executor),
        runtime,
        suspects,
        tls,
    };
    let (inputs, waiting) = mpsc::channel(ENGINE_QUEUE_MAX);
    let shell = Shell::new(parts, inputs);
    // So that the first agent does not wait for it. A failure is retried and reported when an agent starts.
    let preparing = shell.clone();
    shell.tasks.spawn_blocking(move || drop(preparing.host_etc.refresh()));
    let ids = IdSource::new(seed);
    let version = env!("CARGO_PKG_VERSION");
    let (mut engine, first) =
        Engine::boot_with_suspects(opened.loaded, convicted, about, ids, version, now());
    let (batches, committing) = sync_channel(BATCHES_MAX);
    // The first batch says that this daemon is there; a writer that is gone ends the process by itself.
    drop(batches.send(WriterMessage::Batch(first)));
    let token = match kept {
        Some(token) => OperatorToken::Kept(token),
        None => {
            let (asked, answer) = ask_token(&shell);
            // Before there is a writer: it goes into one commit with the first.
            drop(batches.send(WriterMessage::Batch(engine.step([asked], now()))));
            OperatorToken::Asked(answer)
        }
    };
    // One at a time: the next halt follows the engine's answer to the last one.
    let (halt, halts) = mpsc::channel(1);
    let writer = {
        let (shell, writer) = (shell.clone(), with_faults(opened.writer));
        std::thread::Builder::new()
            .name("writer".into())
            .spawn(move || commit::run(writer, &committing, &halt, &shell))
            .map_err(|cause| ServeError::Process { cause })?
    };
    let archive_ended = start_archive(&shell)?;
    bring_down_strays(&shell, &sandboxes).await;
    let decider = Decider { inputs: waiting, halts, writer: batches, shell: shell.clone() };
    shell.spawn(TaskKind::Decide, decider.run(engine));
    let http = tcp.state();
    shell.set_http(http.clone());
    // Before the socket exists: a client that finds the socket finds the token.
    write_credentials(&home, &shell, &gate, token, &socket, &http).await?;
    let bound = api::bind(&socket, tcp)?;
    tracing::info!(event = "daemon.started", epoch, socket = %socket.display(), http = http.url());
    watch_signals(&shell)?;
    shell.spawn(TaskKind::SuspectsSettle, grow_up(shell.clone()));
    shell.spawn(TaskKind::Sweep, crate::reap::sweep_regularly(shell.clone()));
    shell.spawn(TaskKind::JobRetention, crate::jobs::run_retention(shell.clone()));
    // What a killed daemon pulled and did not record.
    shell.spawn(TaskKind::ImageCollection, shell.images.clone().collect());
    let api = Arc::new(Api { shell: shell.clone(), gate, sockets: TaskTracker::new() });
    bound.serve(api, |http| tell_http(&home, &shell, http)).await;
    let patience = shell.config.settings().shutdown_timeout;
    shell.end.cancel();
    shell.tasks.close();
    if tokio::time::timeout(patience, shell.tasks.wait()).await.is_err() {
        tracing::warn!(event = "tasks.cut", patience_ms = patience.as_millis());
    }
    shell.jobs.stop();
    // It ends with the process wherever it is; waiting only spares the next daemon to do a part of it again.
    if archive_ended.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
        tracing::warn!(event = "archive.cut", patience_ms = patience.as_millis());
    }
    shell.suspects.close();
    // The lock is kept to the end. The socket of a daemon that is gone should not exist.
    drop(std::fs::remove_file(&socket));
    drop(shell);
    // The engine is gone, so the writer ends after the commit it may be in; the lock is not given up before.
    if writer.join().is_err() {
        tracing::error!(event = "writer.failed");
    }
    tracing::info!(event = "daemon.stopped", epoch);
    drop(home);
    Ok(())
}

/// After a while deaths say nothing about what is computed.
async fn grow_up(shell: Arc<Shell>) {
    tokio::time::sleep(std::time::Duration::from_millis(YOUNG_MS)).await;
    shell.suspects.settle();
}

/// Starts the archive's thread. It sends nothing: the closed channel shows that it ended.
fn start_archive(shell: &Arc<Shell>) -> Result<Receiver<()>, ServeError> {
    let (archiving, ended) = sync_channel(1);
    let shell = shell.clone();
    let run = move || {
        let _archiving: SyncSender<()> = archiving;
        crate::jobs::run_archive(&shell);
    };
    let started = std::thread::Builder::new().name("archive".into()).spawn(run);
    started.map(|_| ended).map_err(|cause| ServeError::Process { cause })
}

/// Chance from the kernel: for a new database, and for ids.
fn entropy() -> Result<([u8; 64], u64), ServeError> {
    let both = lodge_proto::random_bytes().and_then(|entropy| Ok((entropy, lodge_proto::random_bytes()?)));
    let (entropy, seed) = both.map_err(|cause| ServeError::Entropy { cause })?;
    Ok((entropy, u64::from_le_bytes(seed)))
}

/// Has agents at rest loaded whose pull killed the daemon: it is set aside also if they were stopped meanwhile.
fn add_suspected(opened: &mut OpenedDatabase, convicted: &[Suspect]) {
    let pulls = convicted.iter().filter(|suspect| suspect.work.kind == WorkKind::Pull);
    for id in pulls.filter_map(|suspect| suspect.work.subject.parse::<AgentId>().ok()) {
        if !opened.loaded.agents.iter().any(|row| row.id == id)
            && let Ok(Some(fact)) = opened.reader.here(|store| store.agent_fact(&id))
        {
            opened.loaded.add(fact);
        }
    }
}

/// Sandboxes that may live: their agents run, or are about to be started again and end what they find by themselves.
fn expected_sandboxes(agents: &[AgentRow]) -> HashSet<String> {
    let expected = agents.iter().filter(|row| row.state.wants_sandbox() || row.retry.at.is_some());
    expected.map(|row| row.sandbox.to_string()).collect()
}

/// Sandboxes that live although their agent should not: a stop was recorded and the daemon died before it was done.
async fn bring_down_strays(shell: &Arc<Shell>, expected: &HashSet<String>) {
    let sandboxes = shell.executor.sandboxes().await;
    let others = sandboxes.into_iter().filter(|sandbox| !expected.contains(sandbox));
    for sandbox in others.filter(|sandbox| shell.executor.is_held(sandbox)) {
        let Ok(Some(row)) = shell.reader.here(|store| store.agent_of_sandbox(&sandbox)) else { continue };
        let what = SandboxEffect::Down { run: row.runs, incarnation: row.incarnation };
        shell.act(lodge_engine::Effect::Sandbox { sandbox: row.sandbox, agent: row.id, what });
    }
}

/// The token in `credentials.json`, when it is still good.
fn kept_token(home: &Home, gate: &Gate, recorded: &[TokenRow]) -> Option<String> {
    let known: serde_json::Value = credentials(home);
    let token = known.get("token").and_then(serde_json::Value::as_str)?;
    gate.keeps(token, recorded, now()).then(|| token.to_owned())
}

fn credentials(home: &Home) -> serde_json::Value {
    let read = std::fs::read(home.dir.join("credentials.json"));
    read.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

/// The operator's token: kept while it is valid, issued again otherwise, and written when it or the addresses change.
async fn write_credentials(
    home: &Home,
    shell: &Shell,
    gate: &Gate,
    token: OperatorToken,
    socket: &std::path::Path,
    http: &Http,
) -> Result<(), ServeError> {
    let (is_kept, token) = match token {
        OperatorToken::Kept(token) => (true, token),
        // On disk before it is written to the file: a daemon that dies in between leaves an unused token, and the next
        // daemon revokes it.
        OperatorToken::Asked(answer) => (false, new_token(shell, gate, answer).await?),
    };
    let wanted = serde_json::json!({"token": token, "socket": socket, "http": http.url()});
    if wanted == credentials(home) {
        return Ok(());
    }
    let bytes = wanted.to_string();
    let put = || home.put_private("credentials.json", bytes.as_bytes());
    match shell.room.with_reserve(HomeError::is_full, put) {
        // The existing token opens the socket, and `info` shows the address.
        Err(error) if error.is_full() && is_kept => {
            tracing::warn!(event = "credentials.stale", error = crate::chain(&error));
            Ok(())
        }
        put => Ok(put?),
    }
}

/// Writes the address of a TCP listener that came later into `credentials.json`.
fn tell_http(home: &Home, shell: &Shell, http: &Http) {
    let mut known = credentials(home);
    let Some(fields) = known.as_object_mut() else { return };
    fields.insert("http".to_owned(), http.url().into());
    let bytes = known.to_string();
    let put = || home.put_private("credentials.json", bytes.as_bytes());
    // Clients find the socket all the same, and `info` has the address.
    if let Err(error) = shell.room.with_reserve(HomeError::is_full, put) {
        tracing::warn!(event = "credentials.stale", error = crate::chain(&error));
    }
}

/// Where the operator's token comes from.
enum OperatorToken {
    Kept(String),
    Asked(PendingToken),
}

type PendingToken = oneshot::Receiver<Result<Answer, AskError>>;

fn ask_token(shell: &Shell) -> (Input, PendingToken) {
    let (ticket, answer) = shell.ticket();
    let expires_at = now().plus_ms(CREDENTIALS_MS);
    let new = NewToken { holder: NewTokenHolder::Credentials, name: None, expires_at };
    (
        Input::Api { ticket, request: None, command: Command::Token(TokenCommand::Issue(Box::new(new))) },
        answer,
    )
}

async fn new_token(shell: &Shell, gate: &Gate, answer: PendingToken) -> Result<String, ServeError> {
    let missing = |missing: &'static str| ServeError::TokenMissing { missing };
    let answer = answer.await.map_err(|_| missing("the writer is gone"))?;
    let answer = answer.map_err(|refusal| ServeError::NoToken { refusal: Box::new(refusal) })?;
    let Answer::Token(issued) = answer else { return Err(missing("the engine answered something else")) };
    let row = shell.access.enter(&issued.row.id).map(|who| who.token);
    let row = row.ok_or_else(|| missing("the token is not there after its commit"))?;
    gate.value(&row).map_err(|cause| ServeError::Token { cause })
}

fn watch_signals(shell: &Arc<Shell>) -> Result<(), ServeError> {
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let mut signals = signal(kind).map_err(|cause| ServeError::Process { cause })?;
        let stop = shell.stop.clone();
        shell.spawn(TaskKind::StopSignal, async move {
            signals.recv().await;
            stop.cancel();
        });
    }
    let mut reloads = signal(SignalKind::hangup()).map_err(|cause| ServeError::Process { cause })?;
    let reloaded = shell.clone();
    shell.spawn(TaskKind::ReloadSignal, async move {
        while reloads.recv().await.is_some() {
            if let Err(error) = api::reload(&reloaded, None).await {
                tracing::error!(event = "daemon.not_reloaded", error = error.message, hint = error.data.hint);
            }
        }
    });
    Ok(())
}
