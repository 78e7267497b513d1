//! `exec`: programs in sandboxes that belong to no agent.
//!
//! Owns: the position in each stream, and the exit code of a command that waited for a program.

use lodge_proto::{
    CancelExec, ExecCancelParams, ExecListParams, ExecOutput, ExecOutputParams, ExecOutputPiece, ExecRef,
    ExecRunParams, ExecView, GetExec, ListExecs, PAGE_MAX, ReadExecOutput, RunExec, base64,
};

use super::jobs::letters;
use super::results::ResultList;
use super::stdin::read_bytes;
use super::{CommandContext, map, request_id};
use crate::args::{ExecCommand, ExecListArgs, ExecLogsArgs, ExecRunArgs};
use crate::failure::{CommandExit, CommandFailure};
use crate::follow::DaemonClient;
use crate::render::{self, now_s};
use crate::screen::{ProgramOutput, TerminalStream};
use crate::words::put;

/// Most bytes of each stream per request.
const READ_BYTES: u64 = 1024 * 1024;
/// The longest wait of one request for more output. It is repeated.
const WAIT_MS: u64 = 25_000;
/// The codes that other tools use for a program that could not be run.
const NOT_RUN: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
const SIGNAL_BASE: i32 = 128;

pub(super) async fn exec(context: &CommandContext, command: ExecCommand) -> Result<(), CommandFailure> {
    match command {
        ExecCommand::Run(args) => run(context, args).await,
        ExecCommand::Ls(args) => list(context, args).await,
        ExecCommand::Get(refs) => get(context, refs.execs).await,
        ExecCommand::Logs(args) => logs(context, args).await,
        ExecCommand::Cancel(refs) => cancel(context, refs.execs).await,
    }
}

async fn run(context: &CommandContext, args: ExecRunArgs) -> Result<(), CommandFailure> {
    if args.command.is_empty() {
        return Err(CommandFailure::usage("there is no program to run").hint(format!(
            "name one of the sandbox's tools: `lodge exec run {} -- PROGRAM ARGS…`; `lodge sandbox get {0}` lists them",
            args.sandbox
        )));
    }
    let (stdin, stdin_base64) = match args.interactive {
        true => letters(read_bytes("stdin", || Ok(std::io::stdin())).await?),
        false => (None, None),
    };
    let params = ExecRunParams {
        sandbox: args.sandbox,
        id: args.id,
        command: args.command,
        cwd: args.cwd,
        env: map(args.env),
        stdin,
        stdin_base64,
        request_id: Some(request_id()?),
    };
    // What the daemon refuses must not look like an exit code of the program.
    let mut daemon = context.daemon().await?;
    let started = daemon.call::<RunExec>(params).await.map_err(|failure| failure.exiting(NOT_RUN))?;
    if args.detach {
        return if context.words.json {
            context.words.json(&started)
        } else {
            put(&format!("{}\n", started.id))
        };
    }
    context.cancel_exec_on_interrupt(&started.id);
    let shown = if context.words.json { ShownOutput::Nothing } else { ShownOutput::Both };
    let ended = follow(context, &mut daemon, &started.id, shown).await?;
    if context.words.json {
        context.words.json(&ended)?;
    }
    exit_like_exec(&ended)
}

/// What is printed of an exec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShownOutput {
    /// Each stream where it belongs.
    Both,
    /// stderr alone, to stdout.
    Stderr,
    Nothing,
}

/// One stream on its way to the screen.
struct ShownStream {
    /// None: it is not read, or it is over.
    from: Option<u64>,
    output: ProgramOutput,
}

impl ShownStream {
    fn new(context: &CommandContext, to: TerminalStream, is_shown: bool) -> ShownStream {
        let output = ProgramOutput::new(to, context.words.colours());
        ShownStream { from: is_shown.then_some(0), output }
    }

    /// Prints a piece, and moves behind it. True: the piece said something.
    fn take(
        &mut self,
        context: &CommandContext,
        piece: Option<&ExecOutputPiece>,
    ) -> Result<bool, CommandFailure> {
        let Some(piece) = piece else { return Ok(false) };
        if context.words.json {
            context.words.json_line(piece)?;
        } else {
            self.output.write(&bytes_of(piece)?).map_err(CommandFailure::output)?;
        }
        let moved = piece.next > piece.offset;
        self.from = (!piece.end).then_some(piece.next);
        if piece.end {
            self.output.finish().map_err(CommandFailure::output)?;
        }
        Ok(moved)
    }
}

/// Prints everything that an exec writes, until it is over.
async fn follow(
    context: &CommandContext,
    daemon: &mut DaemonClient<'_>,
    exec: &str,
    shown: ShownOutput,
) -> Result<ExecView, CommandFailure> {
    let stderr_to = match shown {
        ShownOutput::Stderr => TerminalStream::Stdout,
        ShownOutput::Both | ShownOutput::Nothing => TerminalStream::Stderr,
    };
    let mut stdout = ShownStream::new(context, TerminalStream::Stdout, shown == ShownOutput::Both);
    let mut stderr = ShownStream::new(context, stderr_to, shown != ShownOutput::Nothing);
    loop {
        let output = read(daemon, exec, (stdout.from, stderr.from), Some(WAIT_MS)).await?;
        stdout.take(context, output.stdout.as_ref())?;
        stderr.take(context, output.stderr.as_ref())?;
        if output.exec.status != "running" && stdout.from.is_none() && stderr.from.is_none() {
            return Ok(output.exec);
        }
    }
}

async fn read(
    daemon: &mut DaemonClient<'_>,
    exec: &str,
    (stdout_from, stderr_from): (Option<u64>, Option<u64>),
    wait_ms: Option<u64>,
) -> Result<ExecOutput, CommandFailure> {
    let params = ExecOutputParams {
        exec: exec.to_owned(),
        stdout_from,
        stderr_from,
        limit: Some(READ_BYTES),
        wait_ms,
    };
    daemon.call_without_start::<ReadExecOutput>(params).await
}

fn bytes_of(piece: &ExecOutputPiece) -> Result<Vec<u8>, CommandFailure> {
    let unreadable = || CommandFailure::refused("the daemon sent something that does not fit the API");
    match piece.encoding.as_str() {
        "utf8" => Ok(piece.data.clone().into_bytes()),
        "base64" => base64::decode(&piece.data).ok_or_else(unreadable),
        _ => Err(unreadable()),
    }
}

/// The exit code for a command that waited for it: its own, or the one that other tools use.
fn exit(ended: &ExecView) -> CommandExit {
    let code = ended.exit_code.or(ended.signal.map(|signal| SIGNAL_BASE + signal));
    match (ended.status.as_str(), ended.error_code.as_deref(), code) {
        ("finished", _, Some(0)) => CommandExit::Done,
        ("finished", _, Some(code)) => CommandExit::Program(u8::try_from(code).unwrap_or(NOT_RUN)),
        (_, Some("not_found"), _) => CommandExit::Program(NOT_FOUND),
        (_, Some("not_executable"), _) => CommandExit::Program(NOT_EXECUTABLE),
        (_, _, _) => CommandExit::Program(NOT_RUN),
    }
}

/// Ends as the exec did, and says why where a number does not.
fn exit_like_exec(ended: &ExecView) -> Result<(), CommandFailure> {
    match (exit(ended), ended.status.as_str()) {
        (CommandExit::Done, _) => Ok(()),
        (exit, "finished") if ended.cause.is_none() => Err(CommandFailure::Silent(exit)),
        (exit, status) => {
            let what = match (status, &ended.cause) {
                ("finished", Some(cause)) => format!("{} ran into a limit: {cause}", ended.id),
                ("cancelled", _) => format!("{} was cancelled", ended.id),
                (_, _) => format!("{} failed", ended.id),
            };
            let failure = CommandFailure::new(exit, what);
            Err(match &ended.error {
                Some(why) => failure.because(why),
                None => failure,
            })
        }
    }
}

async fn list(context: &CommandContext, args: ExecListArgs) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let params = ExecListParams { sandbox: args.sandbox, status: args.status, ..ExecListParams::default() };
    let wanted = args.limit.map_or(usize::MAX, |limit| limit as usize);
    let mut all: Vec<ExecView> = Vec::new();
    let mut before = None;
    while all.len() < wanted {
        let missing = u32::try_from(wanted - all.len()).unwrap_or(u32::MAX);
        let params = ExecListParams { before, limit: Some(missing.min(PAGE_MAX)), ..params.clone() };
        let page = daemon.call_without_start::<ListExecs>(params).await?;
        all.extend(page.execs);
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    if context.words.json {
        return context.words.json(&all);
    }
    if context.words.quiet {
        return put(&all.iter().map(|view| format!("{}\n", view.id)).collect::<String>());
    }
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    context.put_table(&["ID", "SANDBOX", "COMMAND", "STATUS", "EXIT", "STARTED", "OUTPUT"], &rows)
}

fn row(view: &ExecView) -> Vec<String> {
    let written = render::size(view.stdout_bytes + view.stderr_bytes);
    vec![
        view.id.clone(),
        view.sandbox.clone(),
        command(view),
        status(view),
        ended_with(view),
        render::ago(&view.started_at, now_s()),
        if view.truncated { format!("{written} cut") } else { written },
    ]
}

fn command(view: &ExecView) -> String {
    let words: Vec<String> = view.command.iter().map(|word| render::quoted(word)).collect();
    render::one_line(&words.join(" "))
}

fn status(view: &ExecView) -> String {
    if view.cancelling { "cancelling".to_owned() } else { view.status.clone() }
}

fn ended_with(view: &ExecView) -> String {
    match (view.exit_code, view.signal) {
        (Some(code), _) => code.to_string(),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "-".to_owned(),
    }
}

async fn get(context: &CommandContext, execs: Vec<String>) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let mut results = ResultList::new(&context.words, execs.len());
    for exec in execs {
        match daemon.call_without_start::<GetExec>(ExecRef { exec }).await {
            Ok(view) => results.done(&view, || detail(&view))?,
            Err(failure) => results.failed(failure)?,
        }
    }
    results.finish()
}

/// Everything about it.
fn detail(view: &ExecView) -> String {
    let mut rows = vec![
        ("id", view.id.clone()),
        ("sandbox", view.sandbox.clone()),
        ("command", command(view)),
        ("cwd", view.cwd.clone().unwrap_or_default()),
        ("status", status(view)),
        ("exit", Some(ended_with(view)).filter(|exit| exit != "-").unwrap_or_default()),
        ("limit", view.cause.clone().unwrap_or_default()),
        ("why", view.error.clone().unwrap_or_default()),
        ("started", view.started_at.clone()),
        ("finished", view.finished_at.clone().unwrap_or_default()),
        ("stdout", format!("{} bytes, {}", view.stdout_bytes, view.stdout_path)),
        ("stderr", format!("{} bytes, {}", view.stderr_bytes, view.stderr_path)),
        ("not kept", if view.truncated { "a part of its output".to_owned() } else { String::new() }),
    ];
    rows.retain(|(_, value)| !value.is_empty());
    render::pairs(&rows)
}

async fn logs(context: &CommandContext, args: ExecLogsArgs) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let shown = if args.stderr { ShownOutput::Stderr } else { ShownOutput::Both };
    if args.follow {
        return follow(context, &mut daemon, &args.exec, shown).await.map(drop);
    }
    let to = if args.stderr { TerminalStream::Stdout } else { TerminalStream::Stderr };
    let mut stdout = ShownStream::new(context, TerminalStream::Stdout, !args.stderr);
    let mut stderr = ShownStream::new(context, to, true);
    loop {
        let output = read(&mut daemon, &args.exec, (stdout.from, stderr.from), None).await?;
        let moved =
            [stdout.take(context, output.stdout.as_ref())?, stderr.take(context, output.stderr.as_ref())?];
        if moved == [false, false] {
            return Ok(());
        }
    }
}

async fn cancel(context: &CommandContext, execs: Vec<String>) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let mut results = ResultList::new(&context.words, execs.len());
    for given in execs {
        match cancel_one(context, &mut daemon, given).await {
            Ok(view) => results.done(&view, || format!("{}\n", view.id))?,
            Err(failure) if failure.exit() == CommandExit::NoDaemon => return Err(failure),
            Err(failure) => results.failed(failure)?,
        }
    }
    results.finish()
}

/// Cancels an exec, and waits for its end.
pub(super) async fn cancel_one(
    context: &CommandContext,
    daemon: &mut DaemonClient<'_>,
    exec: String,
) -> Result<ExecView, CommandFailure> {
    let params = ExecCancelParams { exec, request_id: Some(request_id()?) };
    let cancelled = daemon.call::<CancelExec>(params).await?;
    follow(context, daemon, &cancelled.id, ShownOutput::Nothing).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(
        status: &str,
        error_code: Option<&str>,
        exit_code: Option<i32>,
        signal: Option<i32>,
    ) -> ExecView {
        ExecView {
            id: "exe_1".into(),
            sandbox: "sbx_1".into(),
            command: vec!["make".into()],
            cwd: None,
            env: Default::default(),
            status: status.into(),
            exit_code,
            signal,
            cause: None,
            error_code: error_code.map(str::to_owned),
            error: None,
            cancelling: false,
            stdout_path: String::new(),
            stderr_path: String::new(),
            stdout_bytes: 0,
            stderr_bytes: 0,
            truncated: false,
            started_at: String::new(),
            finished_at: None,
        }
    }

    #[test]
    fn a_waiting_client_exits_as_the_program_did_or_as_other_tools_do() {
        for (status, error_code, code, signal, expected) in [
            ("finished", None, Some(0), None, 0),
            ("finished", None, Some(7), None, 7),
            ("finished", None, None, Some(9), 137),
            ("failed", Some("not_found"), None, None, 127),
            ("failed", Some("not_executable"), None, None, 126),
            ("failed", Some("not_started"), None, None, 125),
            ("failed", Some("lost"), None, None, 125),
            ("cancelled", None, Some(0), None, 125),
        ] {
            let view = ended(status, error_code, code, signal);
            assert_eq!(exit(&view).code(), expected, "{status} {error_code:?}");
        }
    }
}
