//! Creating an agent: everything that can be wrong is found before anything is recorded.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lodge_core::lineage::Policy;
use lodge_core::record::{
    AgentSpec, BinRecord, ContextRecord, EnvRecord, FileRecord, ImageRecord, MountRecord, ToolRecord,
};
use lodge_image::agentfile::{self, Agentfile, BinSource, Limit, LoadError, Loaded, Parent, RevivalPolicy};
use lodge_proto::{AgentCreateParams, ErrorBody, Mount};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::methods::recorded_answer;
use crate::engine::{Command, NameChoice, NewAgent, RequestKey};
use crate::shell::Shell;

/// Where `host:` programs may live: what every sandbox sees of the host.
const HOST_PROGRAM_ROOTS: [&str; 5] = ["/usr", "/bin", "/sbin", "/lib", "/opt"];
/// Where a bare program name is looked for. The daemon's own PATH may name places that sandboxes do not see.
const HOST_PATH: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

pub(super) async fn create(
    shell: &Arc<Shell>,
    key: Option<RequestKey>,
    given: AgentCreateParams,
) -> Result<Value, ErrorBody> {
    let new = {
        let shell = shell.clone();
        let prepared = tokio::task::spawn_blocking(move || prepare(&shell, given)).await;
        prepared.unwrap_or_else(|error| Err(ErrorBody::new("daemon.internal", error.to_string())))?
    };
    // That took its time: the same request, sent before, may be so long decided that only the store knows it.
    if let Some(key) = &key
        && let Some(known) = recorded_answer(shell, key)?
    {
        return Ok(known);
    }
    shell.ask(key, Command::CreateAgent(Box::new(new))).await
}

fn prepare(shell: &Shell, given: AgentCreateParams) -> Result<NewAgent, ErrorBody> {
    let loaded = match (&given.path, &given.content) {
        (Some(path), None) => agentfile::load_dir(Path::new(path), &given.build_args),
        (None, Some(content)) => agentfile::load_inline(content.as_bytes(), &given.build_args),
        (Some(_), Some(_)) | (None, None) => {
            return Err(ErrorBody::new("params.invalid", "name exactly one of `path` and `content`")
                .hint("`path` is a directory or an Agentfile of this host, `content` an Agentfile's text"));
        }
    };
    let loaded = loaded.map_err(|error| load_error(&error))?;
    refuse_unsupported(&loaded.agentfile)?;
    let model =
        given.model.clone().or_else(|| loaded.agentfile.model.as_ref().map(|model| model.value.to_string()));
    let model = model.ok_or_else(|| {
        ErrorBody::new("agentfile.no_model", "the Agentfile names no model")
            .hint("add `MODEL provider/model` to it, or give `--model provider/model`")
    })?;
    shell.providers.resolve(&model).map_err(|error| {
        let mut body = ErrorBody::new(error.code(), error.to_string());
        let add = "add one with `lodge provider add`";
        body.data.hint = Some(error.hint().map_or_else(|| add.to_owned(), |hint| format!("{hint}; {add}")));
        body
    })?;
    for key in given.env.keys() {
        agentfile::check_env_key(key)
            .map_err(|error| ErrorBody::new("agent.bad_env", error.to_string()).hint(error.hint()))?;
    }
    let revival_policy = match &given.revival_policy {
        Some(word) => Some(Policy::from_word(word).ok_or_else(|| {
            ErrorBody::new("params.invalid", format!("`{word}` is no revival policy"))
                .hint("revive goes on with the work of a process that died, reap drops it, ask waits for you")
        })?),
        None => declared_policy(&loaded.agentfile),
    };
    let record = image(&loaded)?;
    let digest = format!("sha256:{}", hex(&Sha256::digest(prost_bytes(&record))));
    let name = record.name.clone().unwrap_or_else(|| "agent".to_owned());
    let tools = record.bins.iter().map(find_tool).collect::<Result<Vec<_>, _>>()?;
    let mut labels = record.labels.clone();
    labels.extend(given.labels);
    let spec = AgentSpec {
        model,
        env: given.env,
        labels,
        mounts: mounts(&given.mounts, &shell.config.data_dir)?,
        tools,
        revival_policy: revival_policy.map(Policy::code),
    };
    Ok(NewAgent {
        name: given.name.map_or_else(|| NameChoice::Like(name.clone()), NameChoice::Exactly),
        image: format!("{name}:latest"),
        image_digest: digest,
        record,
        spec,
    })
}

fn prost_bytes(record: &ImageRecord) -> Vec<u8> {
    lodge_store::encode(record)
}

fn load_error(error: &LoadError) -> ErrorBody {
    let code = match error {
        LoadError::Parse(_) => "agentfile.invalid",
        _ => "agentfile.unreadable",
    };
    let mut body = ErrorBody::new(code, error.to_string());
    body.data.cause = std::error::Error::source(error).map(ToString::to_string);
    // Mistakes in an Agentfile are listed with a hint each.
    let listed = matches!(error, LoadError::Parse(_));
    body.data.hint =
        Some(if listed { "mend these lines, and run it again".to_owned() } else { error.hint() });
    body
}

/// What the grammar has and this release does not do is refused, not ignored.
fn refuse_unsupported(file: &Agentfile) -> Result<(), ErrorBody> {
    let refuse = |line: u32, what: &str| {
        Err(ErrorBody::new(
            "agentfile.unsupported",
            format!("Agentfile:{line}: {what} is not supported by this release"),
        )
        .hint("remove that line"))
    };
    if matches!(file.from.value, Parent::Image(_)) {
        return refuse(file.from.line, "FROM with a parent image")
            .map_err(|error| error.hint("write `FROM scratch`"));
    }
    if let Some(runtime) = &file.runtime {
        return refuse(runtime.line, "RUNTIME");
    }
    for bin in &file.bins {
        if let BinSource::Image(_) = bin.source {
            return refuse(bin.line, "a BIN from an image (use `host:program`)");
        }
    }
    let lines = [
        (file.mcps.first().map(|item| item.line), "MCP"),
        (file.skills.first().map(|item| item.line), "SKILL"),
        (file.services.first().map(|item| item.line), "SERVICE"),
        (file.schedules.first().map(|item| item.line), "SCHEDULE"),
        (file.ons.first().map(|item| item.line), "ON"),
        (file.capabilities.first().map(|item| item.line), "CAPABILITY"),
        (file.network.as_ref().map(|item| item.line), "NETWORK"),
    ];
    for limit in &file.limits {
        match limit.value {
            Limit::RevivalPolicy(_) => {}
            Limit::MemoryBytes(_)
            | Limit::Pids(_)
            | Limit::CpuTime(_)
            | Limit::OutputBytes(_)
            | Limit::BudgetMicroUsd(_)
            | Limit::BudgetTokens(_)
            | Limit::ContextTokens(_) => {
                return refuse(limit.line, &format!("LIMIT {}", limit.value.key()));
            }
        }
    }
    for (line, what) in lines {
        if let Some(line) = line {
            return refuse(line, what);
        }
    }
    if let Some(key) = file.required_but_unset().first() {
        return Err(ErrorBody::new(
            "agentfile.invalid",
            format!("CONFIG {key} is required and has no value"),
        )
        .hint(format!("set it with `CONFIG {key}=value`")));
    }
    Ok(())
}

/// What the Agentfile says about work whose process died.
fn declared_policy(file: &Agentfile) -> Option<Policy> {
    file.limits.iter().find_map(|limit| match limit.value {
        Limit::RevivalPolicy(RevivalPolicy::Revive) => Some(Policy::Revive),
        Limit::RevivalPolicy(RevivalPolicy::Reap) => Some(Policy::Reap),
        Limit::RevivalPolicy(RevivalPolicy::Ask) => Some(Policy::Ask),
        Limit::MemoryBytes(_)
        | Limit::Pids(_)
        | Limit::CpuTime(_)
        | Limit::OutputBytes(_)
        | Limit::BudgetMicroUsd(_)
        | Limit::BudgetTokens(_)
        | Limit::ContextTokens(_) => None,
    })
}

fn image(loaded: &Loaded) -> Result<ImageRecord, ErrorBody> {
    let file = &loaded.agentfile;
    let configs: BTreeMap<String, String> = file
        .configs
        .iter()
        .filter_map(|config| Some((config.key.clone(), config.value.as_ref()?.to_string())))
        .collect();
    let bins = file.bins.iter().filter_map(|bin| match &bin.source {
        BinSource::Host(program) => Some(BinRecord {
            name: bin.name.clone(),
            host: program.clone(),
            safe: bin.safe,
            description: bin.description.clone().unwrap_or_default(),
            usage: bin.usage.clone(),
        }),
        BinSource::Image(_) => None,
    });
    let adds = &file.adds;
    let describe =
        |name: &str| adds.iter().find(|add| add.name == name).and_then(|add| add.description.clone());
    Ok(ImageRecord {
        agentfile: loaded.source.clone(),
        contexts: loaded
            .contexts
            .iter()
            .map(|context| ContextRecord {
                name: context.name.clone(),
                description: context.description.clone(),
                text: context.text.clone(),
            })
            .collect(),
        files: loaded
            .files
            .iter()
            .map(|file| FileRecord {
                name: file.name.clone(),
                bytes: file.bytes.clone(),
                description: describe(&file.name),
            })
            .collect(),
        configs,
        env: file
            .envs
            .iter()
            .map(|env| EnvRecord {
                key: env.key.clone(),
                value: env.value.clone(),
                description: env.description.clone(),
            })
            .collect(),
        bins: bins.collect(),
        labels: file.labels.iter().map(|label| (label.key.clone(), label.value.clone())).collect(),
        exec: file.exec.as_ref().map(|exec| exec.value.clone()).unwrap_or_default(),
        model: file.model.as_ref().map(|model| model.value.to_string()),
        name: file.name.as_ref().map(|name| name.value.clone()),
    })
}

/// Finds a host program and records where it is and what it is.
fn find_tool(bin: &BinRecord) -> Result<ToolRecord, ErrorBody> {
    let missing = |why: String| {
        ErrorBody::new("bin.not_found", format!("BIN {}: {why}", bin.name))
            .hint("install that program on this host, or remove the BIN line")
    };
    let candidates: Vec<PathBuf> = if bin.host.starts_with('/') {
        vec![PathBuf::from(&bin.host)]
    } else {
        HOST_PATH.iter().map(|dir| Path::new(dir).join(&bin.host)).collect()
    };
    let runs = |path: &PathBuf| {
        std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    let Some(path) = candidates.into_iter().find(runs) else {
        return Err(missing(format!("there is no program `{}` on this host", bin.host)));
    };
    let real = path.canonicalize().unwrap_or_else(|_| path.clone());
    let visible = |path: &Path| HOST_PROGRAM_ROOTS.iter().any(|root| path.starts_with(root));
    if !visible(&path) || !visible(&real) {
        let path = real.display();
        return Err(missing(format!("`{path}` is not visible inside a sandbox"))
            .hint("host programs must live below /usr, /bin, /sbin or /opt"));
    }
    let digest = digest_of(&path)
        .map_err(|error| missing(format!("`{}` could not be read: {error}", path.display())))?;
    let path = path.display().to_string();
    let description = if bin.description.is_empty() {
        format!("the program `{}`", bin.host)
    } else {
        bin.description.clone()
    };
    Ok(ToolRecord {
        name: bin.name.clone(),
        source: format!("host:{}", bin.host),
        path,
        digest,
        safe: bin.safe,
        description,
        usage: bin.usage.clone(),
    })
}

/// The digest of a program, read in pieces: programs can be large.
fn digest_of(path: &Path) -> std::io::Result<String> {
    use std::io::Read;
    let mut file = std::fs::File::open(path)?;
    let mut hash = Sha256::new();
    let mut piece = vec![0; 64 * 1024];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(format!("sha256:{}", hex(&hash.finalize()))),
            read => hash.update(&piece[..read]),
        }
    }
}

/// Checks mounts: both paths absolute, the host's there, nothing of ours covered, nothing twice.
fn mounts(given: &[Mount], state: &Path) -> Result<Vec<MountRecord>, ErrorBody> {
    const OURS: [&str; 4] = ["etc", "usr", "tmp", "home"];
    let mut mounts: Vec<MountRecord> = Vec::new();
    for mount in given {
        let bad = |why: &str| {
            ErrorBody::new(
                "agent.bad_mount",
                format!("cannot mount {} at {}: {why}", mount.host, mount.target),
            )
            .hint("-v HOST:TARGET[:ro], both absolute; the target is inside the agent's root")
        };
        let (host, target) = (Path::new(&mount.host), Path::new(&mount.target));
        if !host.is_absolute() || !target.is_absolute() {
            return Err(bad("both paths must be absolute"));
        }
        if target.components().any(|part| part == std::path::Component::ParentDir) || target == Path::new("/")
        {
            return Err(bad("the target must be a directory or file below the root"));
        }
        // The real path, so that a link that is changed later leads nowhere else.
        let Ok(host) = host.canonicalize() else { return Err(bad("there is no such path on this host")) };
        if host.starts_with(state) || state.starts_with(&host) {
            return Err(bad("it would show Lodge's own state directory to the agent"));
        }
        let first = target.components().nth(1).map(|part| part.as_os_str().to_string_lossy().into_owned());
        if first.is_some_and(|first| OURS.contains(&first.as_str())) {
            return Err(bad("that part of the root is Lodge's"));
        }
        if mounts.iter().any(|other| other.target == mount.target) {
            return Err(bad("that target is named twice"));
        }
        mounts.push(MountRecord {
            host: host.display().to_string(),
            target: mount.target.clone(),
            read_only: mount.read_only,
        });
    }
    Ok(mounts)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
