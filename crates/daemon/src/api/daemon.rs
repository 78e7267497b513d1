//! The daemon itself: what it is, its settings, its sweep and its end.

use std::sync::Arc;

use lodge_proto::*;
use serde_json::Value;

use super::methods::{Reply, internal, no_method, reply};
use super::{lineages, params, quarantine, reload};
use crate::read_view::ReadView;
use crate::shell::{Shell, now};
use crate::view;
use lodge_engine::{AgentCommand, Command, RequestKey, RunningJobs};

pub(super) async fn call(shell: &Arc<Shell>, key: Option<RequestKey>, method: &str, given: Value) -> Reply {
    match method {
        GetInfo::NAME => {
            let Empty {} = params::<GetInfo>(given)?;
            reply::<GetInfo>(info(shell).await)
        }
        DiscoverApi::NAME => {
            let Empty {} = params::<DiscoverApi>(given)?;
            reply::<DiscoverApi>(Ok(discover(env!("CARGO_PKG_VERSION"))))
        }
        ReloadSettings::NAME => {
            let ReloadParams { .. } = params::<ReloadSettings>(given)?;
            reload(shell, key).await
        }
        ReapSandboxes::NAME => reap(shell, key, &params::<ReapSandboxes>(given)?).await,
        ShutDownDaemon::NAME => shutdown(shell, key, &params::<ShutDownDaemon>(given)?).await,
        _other => Err(no_method(method)),
    }
}

async fn info(shell: &Arc<Shell>) -> Result<Info, ErrorBody> {
    let read = |at: &ReadView<'_>| -> Result<_, ErrorBody> {
        let counts = at.store.agent_counts().map_err(internal)?;
        Ok((counts, lineages::waiting(at)?, quarantine::all(at)?))
    };
    let ((total, running, working), waiting, quarantine) = shell.read(read).await?;
    let layers = shell
        .layers
        .get_or_init(|| async {
            let layers = shell.executor.probe().await.into_iter();
            layers.map(view::layer).collect()
        })
        .await;
    let mut warnings: Vec<String> = layers
        .iter()
        .filter(|layer| !layer.in_force)
        .map(|layer| {
            format!("isolation: {} is missing: {}", layer.name, layer.why.as_deref().unwrap_or("unknown"))
        })
        .collect();
    let storage = shell.room.view(now());
    warnings.extend(shell.room.warning());
    warnings.extend(shell.config.warnings());
    let http = shell.http();
    warnings.extend(http.warning());
    warnings.extend(shell.tls.warnings());
    warnings.extend(shell.jobs.warnings());
    warnings.extend(waiting);
    warnings.extend(quarantine.iter().map(quarantine::warning));
    warnings.extend(shell.providers().last_error().map(|error| format!("providers.yaml: {error}")));
    Ok(Info {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        epoch: shell.epoch,
        log: shell.log.clone(),
        executor: shell.config.settings().executor.word().to_owned(),
        socket: shell.config.socket_path().display().to_string(),
        http_addr: http.addr().map(str::to_owned),
        http: view::http(&http, shell.tls.current().map(|certificate| certificate.fingerprint())),
        data_dir: shell.config.data_dir.display().to_string(),
        config_file: shell.config.file().map(|file| file.display().to_string()),
        pid: std::process::id(),
        started_at: shell.started_at.to_string(),
        agents: AgentCounts { total, running, working },
        storage,
        isolation: layers.clone(),
        config: shell.config.shown(),
        warnings,
        quarantine,
    })
}

async fn reap(shell: &Arc<Shell>, key: Option<RequestKey>, ReapParams { .. }: &ReapParams) -> Reply {
    let answer = view::text(&crate::reap::reap(shell).await.map_err(internal)?);
    if key.is_some() {
        match shell.ask(key, Command::Keep { answer: answer.clone() }).await {
            Ok(_) => {}
            // Repeated sweeps are harmless, and free space on a full disk.
            Err(error) if error.is_disk_full() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(answer)
}

/// Stops every agent. Starts are refused meanwhile, and those that were accepted before are seen by the second round.
async fn stop_agents(shell: &Arc<Shell>) -> Result<(), ErrorBody> {
    loop {
        let agents = shell.reader.read(|store| store.agents(None, u32::MAX)).await.map_err(internal)?;
        let live: Vec<_> = agents.into_iter().filter(|found| found.row.state.takes_turns()).collect();
        if live.is_empty() {
            return Ok(());
        }
        let stops = live.into_iter().map(|found| {
            let shell = shell.clone();
            let stop = AgentCommand::Stop { id: found.row.id, jobs: RunningJobs::Cancel };
            async move { shell.ask(None, Command::Agent(stop)).await }
        });
        for stopped in futures_util::future::join_all(stops).await {
            stopped?;
        }
    }
}

async fn shutdown(shell: &Arc<Shell>, key: Option<RequestKey>, given: &ShutdownParams) -> Reply {
    if given.agents {
        shell.refuse_starts();
        if let Err(error) = stop_agents(shell).await {
            shell.allow_starts();
            return Err(error);
        }
    }
    let answer = view::text(&Done { done: true });
    if key.is_some() {
        match shell.ask(key, Command::Keep { answer: answer.clone() }).await {
            Ok(_) => {}
            // Asked twice it ends once, so a daemon that can record nothing can still be ended.
            Err(error) if error.is_disk_full() => {}
            Err(error) => return Err(error.into()),
        }
    }
    // Requests that were taken, this one among them, are still answered.
    shell.stop.cancel();
    Ok(answer)
}
