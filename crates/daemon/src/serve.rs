//! The daemon's life: take the lock, load, recover, open the doors, wait, close.

use std::io::Read;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use lodge_core::IdSource;
use lodge_core::retry::Backoff;
use lodge_exec::Program;
use lodge_store::OpenError;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use crate::api::{self, Api, ListenError};
use crate::auth::Gate;
use crate::commit::{self, BATCHES_MAX};
use crate::config::Config;
use crate::crash;
use crate::decide::{Decider, ToWriter};
use crate::engine::{Engine, Host};
use crate::home::{Home, HomeError};
use crate::room::Room;
use crate::shell::{ENGINE_QUEUE_MAX, Parts, Shell, now};

/// The programs of every sandbox, built with the daemon and carried in it.
// SAFETY: both come from `include_bytes!`.
static KEEPER: Program = unsafe {
    Program::carried(
        include_bytes!(concat!(env!("OUT_DIR"), "/keeper")),
        include_bytes!(concat!(env!("OUT_DIR"), "/keeper.sha256")),
    )
};
// SAFETY: as above.
static RUNTIME: Program = unsafe {
    Program::carried(
        include_bytes!(concat!(env!("OUT_DIR"), "/runtime")),
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
            ServeError::Entropy { .. } | ServeError::Token { .. } | ServeError::Process { .. } => None,
        }
    }

    /// 75 (try again later) tells whoever started us that another daemon has the directory.
    pub fn exit_code(&self) -> u8 {
        match self {
            ServeError::Home(HomeError::Taken { .. }) => 75,
            ServeError::Home(_)
            | ServeError::Store(_)
            | ServeError::Host(_)
            | ServeError::Listen(_)
            | ServeError::Entropy { .. }
            | ServeError::Token { .. }
            | ServeError::Process { .. }
            | ServeError::Docker => 1,
        }
    }
}

/// Runs the daemon until it is told to stop.
pub async fn serve(mut config: Config) -> Result<(), ServeError> {
    if config.text("executor") == "docker" {
        return Err(ServeError::Docker);
    }
    let mut home = Home::take(&config.data_dir)?;
    crash::point("after_lock");
    // Inside a sandbox only the real path is there, whatever links led to it.
    config.data_dir.clone_from(&home.dir);
    // A port that is taken is found before anything is changed. Nobody is served before the end of this function.
    let tcp = match (!config.flag("no-http")).then(|| config.text("http-addr")) {
        Some(addr) => Some(api::bind_tcp(addr).await?),
        None => None,
    };
    let (entropy, seed) = entropy()?;
    let room = Room::of(&home.dir);
    let is_full = |error: &OpenError| matches!(error, OpenError::Full { .. });
    let opened = room.with_reserve(is_full, || lodge_store::open(&home.database(), &entropy))?;
    crash::point("after_load");
    match room.with_reserve(HomeError::is_full, || home.sign(opened.loaded.epoch)) {
        // Those who lose the lock are told less; whoever reads is served all the same.
        Err(error) if error.is_full() => {
            tracing::warn!(event = "lock.not_signed", error = crate::chain(&error))
        }
        signed => signed?,
    }
    let host = Arc::new(lodge_exec::Host::open(&config.data_dir, KEEPER)?);
    let runtime = host.program("runtime", RUNTIME)?;
    let gate = Gate::new(&opened.meta.state_key, &opened.meta.log);
    let (epoch, socket, patience) =
        (opened.loaded.epoch, config.path("socket-path"), config.span("shutdown-timeout"));
    let about = Host {
        boot: host.boot_id().to_owned(),
        own_uids: rustix::process::geteuid().is_root(),
        policy: config.policy(),
        backoff: Backoff { base: config.span("backoff-base"), cap: config.span("backoff-cap") },
    };
    let parts = Parts {
        config,
        epoch,
        log: opened.meta.log.clone(),
        state_key: opened.meta.state_key,
        reader: opened.reader,
        head: opened.loaded.seq,
        room,
        host,
        runtime,
    };
    let (inputs, waiting) = mpsc::channel(ENGINE_QUEUE_MAX);
    let shell = Shell::new(parts, inputs);
    let ids = IdSource::new(seed);
    let (engine, first) = Engine::boot(opened.loaded, about, ids, env!("CARGO_PKG_VERSION"), now());
    let (batches, committing) = sync_channel(BATCHES_MAX);
    // One at a time: the next follows only what the engine said to the last.
    let (halt, halts) = mpsc::channel(1);
    let writer = {
        let shell = shell.clone();
        std::thread::Builder::new()
            .name("writer".into())
            .spawn(move || commit::run(opened.writer, &committing, &halt, &shell))
            .map_err(|cause| ServeError::Process { cause })?
    };
    // The first batch says that this daemon is there; a writer that is gone ends the process by itself.
    drop(batches.send(ToWriter::Batch(first)));
    bring_down_strays(&shell);
    let decider = Decider { inputs: waiting, halts, writer: batches, shell: shell.clone() };
    shell.spawn(decider.run(engine));
    let http = tcp.as_ref().map(|(_, addr)| addr.clone());
    shell.set_http_addr(http.clone());
    // Before the socket is there: whoever finds the socket finds the token.
    write_credentials(&home, &shell.room, &gate, &socket, http.as_deref())?;
    let bound = api::bind(&socket, tcp)?;
    tracing::info!(event = "daemon.started", epoch, socket = %socket.display(), http);
    watch_signals(&shell)?;
    shell.spawn(crate::reap::sweep_regularly(shell.clone()));
    bound.serve(Arc::new(Api { shell: shell.clone(), gate, sockets: TaskTracker::new() }), patience).await;
    shell.end.cancel();
    shell.tasks.close();
    if tokio::time::timeout(patience, shell.tasks.wait()).await.is_err() {
        tracing::warn!(event = "tasks.cut", patience_ms = patience.as_millis());
    }
    // The lock is held to the end; the socket of a daemon that is gone should not look like one.
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

/// Chance from the kernel: for a new database, and for ids.
fn entropy() -> Result<([u8; 64], u64), ServeError> {
    let mut bytes = [0; 72];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut bytes));
    read.map_err(|cause| ServeError::Entropy { cause })?;
    let (mut entropy, mut seed) = ([0; 64], [0; 8]);
    entropy.copy_from_slice(&bytes[..64]);
    seed.copy_from_slice(&bytes[64..]);
    Ok((entropy, u64::from_le_bytes(seed)))
}

/// Sandboxes that live although their agent should not: a stop was recorded and the daemon died before it was done.
fn bring_down_strays(shell: &Arc<Shell>) {
    let sandboxes = shell.host.sandboxes();
    if sandboxes.is_empty() {
        return;
    }
    let Ok(agents) = shell.reader.agents(None, u32::MAX) else { return };
    for found in agents {
        let stray = !found.row.state.wants_sandbox()
            && sandboxes.iter().any(|sandbox| sandbox == found.row.sandbox.as_str());
        if stray && shell.host.is_held(found.row.sandbox.as_str()) {
            let (agent, sandbox, run) = (found.row.id, found.row.sandbox, found.row.runs);
            shell.act(crate::engine::Effect::Down { agent, sandbox, run });
        }
    }
}

/// The operator's token: kept while it is good, written anew otherwise, and when the addresses change.
fn write_credentials(
    home: &Home,
    room: &Room,
    gate: &Gate,
    socket: &std::path::Path,
    http: Option<&str>,
) -> Result<(), ServeError> {
    let path = home.dir.join("credentials.json");
    let known: serde_json::Value =
        std::fs::read(&path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
    let kept =
        known.get("token").and_then(serde_json::Value::as_str).filter(|token| gate.keeps(token, now()));
    let token = match kept {
        Some(token) => token.to_owned(),
        None => gate.operator_token(now()).map_err(|cause| ServeError::Token { cause })?,
    };
    let http = http.map(|addr| format!("http://{addr}"));
    let wanted = serde_json::json!({"token": token, "socket": socket, "http": http});
    if wanted == known {
        return Ok(());
    }
    let bytes = wanted.to_string();
    match room.with_reserve(HomeError::is_full, || home.put_private("credentials.json", bytes.as_bytes())) {
        // The token that is there opens the socket, and `info` tells the address.
        Err(error) if error.is_full() && kept.is_some() => {
            tracing::warn!(event = "credentials.stale", error = crate::chain(&error));
            Ok(())
        }
        put => Ok(put?),
    }
}

fn watch_signals(shell: &Arc<Shell>) -> Result<(), ServeError> {
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let mut signals = signal(kind).map_err(|cause| ServeError::Process { cause })?;
        let stop = shell.stop.clone();
        shell.spawn(async move {
            signals.recv().await;
            stop.cancel();
        });
    }
    Ok(())
}
