//! Refusals of requests about standalone sandboxes and their execs.

use lodge_core::id::{BadChosenId, CHOSEN_ID_MAX, CHOSEN_ID_MIN};
use lodge_core::job_check::JobFault;
use lodge_core::limits::{LIVE_SANDBOXES_MAX, SANDBOX_EXECS_MAX};
use lodge_core::{ExecId, SandboxId};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SandboxRefusal {
    #[error("no sandbox `{given}`")]
    NotFound { given: String },
    #[error("several sandboxes start with `{given}`")]
    Ambiguous { given: String, ids: Vec<String> },
    #[error(transparent)]
    BadId(#[from] BadChosenId),
    #[error("the id `{id}` is taken: ids are never used again, also after `rm`")]
    IdTaken { id: SandboxId },
    #[error("the sandbox {id} is {state}")]
    WrongState { id: SandboxId, state: &'static str },
    #[error("{LIVE_SANDBOXES_MAX} sandboxes are live")]
    TooMany,
    #[error("{fault}")]
    Label { fault: JobFault },
    #[error("`--image` needs the docker executor, and this daemon runs the system executor")]
    Image,
    #[error("`{given}` is not a tool that the system executor can give to a sandbox")]
    Tool { given: String },
}

impl SandboxRefusal {
    pub(crate) fn code(&self) -> &'static str {
        match self {
            SandboxRefusal::NotFound { .. } => "sandbox.not_found",
            SandboxRefusal::Ambiguous { .. } => "sandbox.ambiguous",
            SandboxRefusal::BadId(_) => "sandbox.bad_id",
            SandboxRefusal::IdTaken { .. } => "sandbox.id_taken",
            SandboxRefusal::WrongState { .. } => "sandbox.wrong_state",
            SandboxRefusal::TooMany => "sandbox.too_many",
            SandboxRefusal::Label { .. } => "sandbox.bad_label",
            SandboxRefusal::Image => "sandbox.no_images",
            SandboxRefusal::Tool { .. } => "sandbox.bad_tool",
        }
    }

    pub(crate) fn hint(&self) -> String {
        match self {
            SandboxRefusal::NotFound { .. } => "`lodge sandbox ls -a` lists all sandboxes".to_owned(),
            SandboxRefusal::Ambiguous { ids, .. } => format!("give more of the id: {}", ids.join(", ")),
            SandboxRefusal::BadId(bad) => id_hint(bad),
            SandboxRefusal::IdTaken { .. } => "choose another id, or none".to_owned(),
            SandboxRefusal::WrongState { id, state } => match *state {
                "stopped" | "failed" => format!("`lodge sandbox resume {id}` starts it again"),
                "pending" => format!("`lodge sandbox get {id}` shows when it is ready"),
                _other => format!("`lodge sandbox get {id}` shows its state"),
            },
            SandboxRefusal::TooMany => "stop or remove some of them".to_owned(),
            SandboxRefusal::Label { fault } => fault.hint(),
            SandboxRefusal::Image => {
                "on the system executor a sandbox has tools of the host in place of a root file system: \
                 `--bin NAME=host:PROGRAM`, or `--shell` for a shell with the ordinary utilities"
                    .to_owned()
            }
            SandboxRefusal::Tool { .. } => {
                "give a program of the host, such as `--bin python3=host:python3`; tools from images are not supported \
                 for sandboxes yet"
                    .to_owned()
            }
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExecRefusal {
    #[error("no exec `{given}`")]
    NotFound { given: String },
    #[error("several execs start with `{given}`")]
    Ambiguous { given: String, ids: Vec<String> },
    #[error(transparent)]
    BadId(#[from] BadChosenId),
    #[error("the id `{id}` is taken: ids of execs are never used again")]
    IdTaken { id: ExecId },
    #[error("the exec {id} is over")]
    NotRunning { id: ExecId },
    #[error("no command is given")]
    NoCommand,
    #[error("{fault}")]
    TooLarge { fault: JobFault },
    #[error("{SANDBOX_EXECS_MAX} execs run in the sandbox {sandbox}")]
    TooMany { sandbox: SandboxId },
}

impl ExecRefusal {
    pub(crate) fn code(&self) -> &'static str {
        match self {
            ExecRefusal::NotFound { .. } => "exec.not_found",
            ExecRefusal::Ambiguous { .. } => "exec.ambiguous",
            ExecRefusal::BadId(_) => "exec.bad_id",
            ExecRefusal::IdTaken { .. } => "exec.id_taken",
            ExecRefusal::NotRunning { .. } => "exec.not_running",
            ExecRefusal::NoCommand => "params.invalid",
            ExecRefusal::TooLarge { .. } => "exec.too_large",
            ExecRefusal::TooMany { .. } => "exec.too_many",
        }
    }

    pub(crate) fn hint(&self) -> String {
        match self {
            ExecRefusal::NotFound { .. } => "`lodge exec ls` lists execs".to_owned(),
            ExecRefusal::Ambiguous { ids, .. } => format!("give more of the id: {}", ids.join(", ")),
            ExecRefusal::BadId(bad) => id_hint(bad),
            ExecRefusal::IdTaken { .. } => "choose another id, or none".to_owned(),
            ExecRefusal::NotRunning { id } => format!("`lodge exec get {id}` shows how it ended"),
            ExecRefusal::NoCommand => "give a program of the sandbox and its arguments".to_owned(),
            ExecRefusal::TooLarge { fault } => fault.hint(),
            ExecRefusal::TooMany { sandbox } => {
                format!("run it again when some of them have ended; `lodge exec ls {sandbox}` lists them")
            }
        }
    }
}

fn id_hint(bad: &BadChosenId) -> String {
    match bad {
        BadChosenId::Grammar { .. } => format!(
            "an id has {CHOSEN_ID_MIN} to {CHOSEN_ID_MAX} of A-Z a-z 0-9 _ -, and begins and ends with a letter or a digit"
        ),
        BadChosenId::Reserved { .. } => {
            "ids such as `sbx_…` and the word `daemon` are the daemon's own; choose another one".to_owned()
        }
    }
}
