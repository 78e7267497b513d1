//! `exec/…`: programs that clients run in standalone sandboxes.

use std::sync::Arc;
use std::time::Duration;

use lodge_core::ExecId;
use lodge_core::sandbox::{SandboxExecRow, SandboxExecState};
use lodge_engine::{Command, ExecRefusal, NewExec, RequestKey, SandboxCommand};
use lodge_exec::ExecStream;
use lodge_proto::{
    ApiMethod, CancelExec, ErrorBody, ExecList, ExecListParams, ExecOutput, ExecOutputParams,
    ExecOutputPiece, ExecRunParams, ExecView, GetExec, ListExecs, ReadExecOutput, RunExec,
};
use lodge_store::ExecFilter;
use serde_json::Value;

use super::create::check_env;
use super::jobs::output::written;
use super::jobs::submit::stdin;
use super::methods::{Reply, changed, internal, no_method, page, reply};
use super::{params, sandboxes};
use crate::auth::{ApiCaller, rights};
use crate::exec_logs;
use crate::read_view::ReadView;
use crate::shell::Shell;
use crate::view;

/// Bytes of each stream in one answer: as many as fit well into a message, and at most.
const PIECE_DEFAULT: u64 = 256 * 1024;
const PIECE_MAX: u64 = 1024 * 1024;
const WAIT_MAX_MS: u64 = 30_000;
/// The longest working directory: a path of the kernel.
const CWD_BYTES_MAX: usize = 4_096;

pub(super) async fn call(
    shell: &Arc<Shell>,
    who: &ApiCaller,
    key: Option<RequestKey>,
    method: &str,
    given: Value,
) -> Reply {
    match method {
        RunExec::NAME => {
            let given = params::<RunExec>(given)?;
            let new = shell.read_few(move |at| read(at, given)).await?;
            let command = Command::Sandbox(SandboxCommand::RunExec(Box::new(new)));
            changed::<RunExec>(&shell.ask(key, command).await?)
        }
        ListExecs::NAME => {
            let given = params::<ListExecs>(given)?;
            shell.read(move |at| reply::<ListExecs>(list(at, &given))).await
        }
        GetExec::NAME => {
            let given = params::<GetExec>(given)?;
            shell.read_few(move |at| reply::<GetExec>(get(at, &given.exec))).await
        }
        CancelExec::NAME => {
            let given = params::<CancelExec>(given)?;
            let id = shell.read_few(move |at| find(at, &given.exec)).await?;
            let command = Command::Sandbox(SandboxCommand::CancelExec { id });
            changed::<CancelExec>(&shell.ask(key, command).await?)
        }
        ReadExecOutput::NAME => {
            reply::<ReadExecOutput>(output(shell, who, params::<ReadExecOutput>(given)?).await)
        }
        _other => Err(no_method(method)),
    }
}

fn read(at: &ReadView<'_>, given: ExecRunParams) -> Result<NewExec, ErrorBody> {
    let sandbox = sandboxes::find(at, &given.sandbox)?;
    let id = given.id.as_deref().map(ExecId::choose).transpose();
    let id = id.map_err(|bad| view::refused(ExecRefusal::from(bad)))?;
    check_env(given.env.iter())?;
    let is_path = |cwd: &String| cwd.starts_with('/') && cwd.len() <= CWD_BYTES_MAX && !cwd.contains('\0');
    if let Some(cwd) = given.cwd.as_ref().filter(|cwd| !is_path(cwd)) {
        return Err(ErrorBody::new("params.invalid", format!("`{cwd}` is no directory of a sandbox"))
            .hint("give an absolute path as the sandbox sees it, such as /workspace"));
    }
    Ok(NewExec {
        sandbox,
        id,
        command: given.command,
        cwd: given.cwd,
        env: given.env,
        stdin: stdin(given.stdin, given.stdin_base64)?,
    })
}

fn get(at: &ReadView<'_>, given: &str) -> Result<ExecView, ErrorBody> {
    let id = find(at, given)?;
    let row = at.store.exec(&id).map_err(internal)?.ok_or_else(|| no_exec(given))?;
    Ok(shown(at, &row))
}

/// An exec as it is now. While it runs, its files show how much it wrote.
pub(super) fn shown(shell: &Shell, row: &SandboxExecRow) -> ExecView {
    let mut view = view::exec(row);
    if row.progress.state.is_open() {
        let length = |stream| {
            exec_logs::length(&shell.config.data_dir, &row.sandbox, &row.id, stream).unwrap_or_default()
        };
        (view.stdout_bytes, view.stderr_bytes) = (length(ExecStream::Stdout), length(ExecStream::Stderr));
    }
    view
}

fn list(at: &ReadView<'_>, given: &ExecListParams) -> Result<ExecList, ErrorBody> {
    let sandbox = given.sandbox.as_deref().map(|sandbox| sandboxes::find(at, sandbox)).transpose()?;
    let state = given.status.as_deref().map(state).transpose()?;
    let before = given.before.as_deref().map(|before| find(at, before)).transpose()?;
    let filter = ExecFilter { sandbox: sandbox.as_ref(), state, before: before.as_ref() };
    let limit = page(given.limit);
    let rows = at.store.execs(filter, limit + 1).map_err(internal)?;
    let is_last = rows.len() <= limit as usize;
    let rows = &rows[..rows.len().min(limit as usize)];
    let next = rows.last().filter(|_| !is_last).map(|row| row.id.to_string());
    Ok(ExecList { execs: rows.iter().map(|row| shown(at, row)).collect(), next })
}

fn state(word: &str) -> Result<SandboxExecState, ErrorBody> {
    SandboxExecState::from_word(word).ok_or_else(|| {
        let words = SandboxExecState::ALL.map(SandboxExecState::word).join(", ");
        ErrorBody::new("params.invalid", format!("`{word}` is not the status of an exec"))
            .hint(format!("those are {words}"))
    })
}

/// The exec that an id or a unique beginning of one means.
fn find(at: &ReadView<'_>, given: &str) -> Result<ExecId, ErrorBody> {
    let found = if given.is_empty() { Vec::new() } else { at.store.find_exec(given).map_err(internal)? };
    match found.as_slice() {
        [] => Err(no_exec(given)),
        [one] => Ok(one.clone()),
        several => match several.iter().find(|id| id.as_str() == given) {
            Some(exactly) => Ok(exactly.clone()),
            None => {
                let ids = several.iter().map(ToString::to_string).collect();
                Err(view::refused(ExecRefusal::Ambiguous { given: given.to_owned(), ids }))
            }
        },
    }
}

fn no_exec(given: &str) -> ErrorBody {
    view::refused(ExecRefusal::NotFound { given: given.to_owned() })
}

/// Pieces of the output, as soon as there is something to say.
async fn output(
    shell: &Arc<Shell>,
    who: &ApiCaller,
    given: ExecOutputParams,
) -> Result<ExecOutput, ErrorBody> {
    let named = given.exec.clone();
    let id = shell.read_few(move |at| find(at, &named)).await?;
    let wait = Duration::from_millis(given.wait_ms.unwrap_or(0).min(WAIT_MAX_MS));
    let late = tokio::time::sleep(wait);
    tokio::pin!(late);
    // From now on nothing is missed.
    let mut changed = shell.exec_changed(&id);
    loop {
        let pieces = pieces(shell, &id, &given).await?;
        if says_something(&pieces) || wait.is_zero() {
            return Ok(pieces);
        }
        tokio::select! {
            () = &mut late => return Ok(pieces),
            () = shell.stop.cancelled() => return Ok(pieces),
            _ = who.over() => return Err(refused(who)),
            more = changed.changed() => if more.is_err() {
                // Its end is recorded: there is one last answer.
                changed = shell.exec_changed(&id);
            },
        }
    }
}

fn says_something(output: &ExecOutput) -> bool {
    let says = |piece: &ExecOutputPiece| piece.end || piece.next > piece.offset;
    let mut pieces = [&output.stdout, &output.stderr].into_iter().flatten().peekable();
    match pieces.peek() {
        // The end of one stream is no reason to ask again and again for the other.
        Some(_) => {
            let pieces: Vec<&ExecOutputPiece> = pieces.collect();
            pieces.iter().any(|piece| piece.next > piece.offset) || pieces.iter().all(|piece| says(piece))
        }
        None => output.exec.status != SandboxExecState::Running.word(),
    }
}

async fn pieces(shell: &Arc<Shell>, id: &ExecId, given: &ExecOutputParams) -> Result<ExecOutput, ErrorBody> {
    let (read, given) = (id.clone(), given.clone());
    let found = shell.read_few(move |at| {
        let row: Option<SandboxExecRow> = at.store.exec(&read).map_err(internal)?;
        row.ok_or_else(|| no_exec(read.as_str()))
    });
    let (row, shell) = (found.await?, shell.clone());
    // A megabyte is read on a thread that may block.
    let read = tokio::task::spawn_blocking(move || -> Result<ExecOutput, ErrorBody> {
        let limit = given.limit.unwrap_or(PIECE_DEFAULT).clamp(1, PIECE_MAX);
        let one =
            |from: Option<u64>, stream| from.map(|from| piece(&shell, &row, stream, from, limit)).transpose();
        let stdout = one(given.stdout_from, ExecStream::Stdout)?;
        let stderr = one(given.stderr_from, ExecStream::Stderr)?;
        Ok(ExecOutput { exec: shown(&shell, &row), stdout, stderr })
    });
    read.await.map_err(|error| ErrorBody::new("daemon.internal", error.to_string()))?
}

/// What there is of a stream from an offset on. The row is older than what is read, so an end in it is one.
fn piece(
    shell: &Shell,
    row: &SandboxExecRow,
    stream: ExecStream,
    offset: u64,
    limit: u64,
) -> Result<ExecOutputPiece, ErrorBody> {
    let path = exec_logs::path_of(&shell.config.data_dir, &row.sandbox, &row.id, stream);
    let len_max = usize::try_from(limit).unwrap_or(usize::MAX);
    let bytes = exec_logs::read(&path, offset, len_max).map_err(|error| {
        ErrorBody::new("exec.output_unreadable", format!("the output of {} could not be read", row.id))
            .because(error.to_string())
    })?;
    let read = bytes.len() as u64;
    let over = !row.progress.state.is_open() && read < limit;
    let (data, encoding, taken) = written(bytes);
    let next = offset + taken as u64;
    let end = over && taken as u64 == read;
    Ok(ExecOutputPiece { offset, next, data, encoding: encoding.to_owned(), end })
}

/// Why a caller whose token was good when it came is sent away now.
fn refused(who: &ApiCaller) -> ErrorBody {
    match rights::admit(who, ReadExecOutput::NAME) {
        Err(error) => error,
        Ok(_) => ErrorBody::new("auth.revoked", "the token was revoked"),
    }
}
