//! `lodge`: the command line.
//!
//! Owns: reading the arguments, one command's life, the exit code. Never: work of its own; see `commands`.

mod answer;
mod args;
mod autostart;
mod chat;
mod commands;
mod connect;
mod failure;
mod fold;
mod follow;
mod help;
mod job;
mod line_diff;
mod needs;
mod parse;
mod progress;
mod render;
mod screen;
mod words;

use tokio::runtime::{Builder, LocalOptions, LocalRuntime};

use crate::args::Cli;
use crate::commands::CommandContext;
use crate::connect::DaemonAddress;
use crate::failure::{CommandExit, CommandFailure};
use crate::screen::TerminalStream;
use crate::words::Words;

fn main() {
    let mut words = std::env::args().skip(1);
    // No command for people: the self-test starts this program in it, to count from outside.
    if words.next().as_deref() == Some(lodge_selftest::ROLE_COMMAND) {
        let role = words.next().unwrap_or_default();
        std::process::exit(report_end(commands::selftest_role(&role, &words.collect::<Vec<_>>())).code());
    }
    let words: Vec<_> = std::env::args_os().collect();
    if let Some(page) = help::page(&words) {
        std::process::exit(report_end(words::put(page)).code());
    }
    // Exit codes and broken pipes are ours to decide, so clap does not end the process for wrong arguments.
    let exit = match Cli::read(&words) {
        Ok(cli) => report_end(run(cli)),
        Err(error) => match help::unknown_command(&error, &words) {
            Some(failure) => report_end(Err(failure)),
            None => {
                drop(show_usage(&error));
                if error.exit_code() == 0 { CommandExit::Done } else { CommandExit::Usage }
            }
        },
    };
    // A thread may still read stdin. The exit does not wait for it.
    std::process::exit(exit.code());
}

/// Help goes to stdout in its colours. What is wrong with arguments goes to stderr, and repeats them.
fn show_usage(error: &clap::Error) -> std::io::Result<()> {
    let text = error.render();
    if error.use_stderr() {
        return screen::write(TerminalStream::Stderr, &text.to_string());
    }
    screen::write_help(&text.to_string(), &text.ansi().to_string(), words::colours())
}

fn run(cli: Cli) -> Result<(), CommandFailure> {
    let words = Words::new(cli.global.quiet, cli.global.json);
    // These have nothing to do with any daemon of the user's, nor with where its state is.
    match cli.command {
        args::CliCommand::Completions { shell } => return commands::completions(shell),
        args::CliCommand::Selftest(args) => return runtime()?.block_on(commands::selftest(&words, args)),
        _ => {}
    }
    let address = DaemonAddress::resolve(&cli.global, |name| std::env::var(name).ok())?;
    address.check_state_dir()?;
    let context = CommandContext::new(address, words);
    let runtime = runtime()?;
    let ended = runtime.block_on(async {
        let interrupt = tokio::signal::ctrl_c();
        tokio::select! {
            ended = commands::dispatch(&context, cli.command) => ended,
            Ok(()) = interrupt => Err(commands::interrupted(&context).await),
        }
    });
    // Dropping it would wait for a thread that reads a terminal or a pipe on which nothing may ever come.
    runtime.shutdown_background();
    ended
}

/// One that runs on this thread and nowhere else: without the code of one that has several the program needs no library of
/// mathematics, which every command would load.
fn runtime() -> Result<LocalRuntime, CommandFailure> {
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
    runtime.map_err(|cause| CommandFailure::refused("could not start").because(cause))
}

fn report_end(ended: Result<(), CommandFailure>) -> CommandExit {
    match ended {
        Ok(()) => CommandExit::Done,
        Err(failure) => {
            if let CommandFailure::Told(report) = &failure {
                render::error(report);
            }
            failure.exit()
        }
    }
}
