//! `lodge`: the command line.
//!
//! Owns: reading the arguments, one command's life, the exit code. Never: work of its own; see `commands`.

mod answer;
mod args;
mod autostart;
mod commands;
mod connect;
mod failure;
mod fold;
mod follow;
mod parse;
mod render;
mod words;

use clap::Parser;

use crate::args::Cli;
use crate::commands::Context;
use crate::connect::Address;
use crate::failure::{Exit, Failure};
use crate::words::Words;

fn main() {
    // Exit codes and broken pipes are ours to decide, so clap does not end the process for wrong arguments.
    let exit = match Cli::try_parse() {
        Ok(cli) => conclude(run(cli)),
        Err(error) => {
            drop(error.print());
            if error.exit_code() == 0 { Exit::Done } else { Exit::Usage }
        }
    };
    // A thread may still wait for a line on stdin; nobody waits for it.
    std::process::exit(exit as i32);
}

fn run(cli: Cli) -> Result<(), Failure> {
    if let args::Command::Completions { shell } = cli.command {
        return commands::completions(shell);
    }
    let words = Words::new(cli.global.quiet, cli.global.json);
    let address = Address::resolve(&cli.global, |name| std::env::var(name).ok())?;
    let context = Context::new(address, words);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|cause| Failure::refused("could not start").because(cause))?;
    runtime.block_on(async {
        let interrupt = tokio::signal::ctrl_c();
        tokio::select! {
            ended = commands::dispatch(&context, cli.command) => ended,
            Ok(()) = interrupt => Err(commands::interrupted(&context).await),
        }
    })
}

fn conclude(ended: Result<(), Failure>) -> Exit {
    match ended {
        Ok(()) => Exit::Done,
        Err(failure) => {
            if let Failure::Told(report) = &failure {
                render::error(report);
            }
            failure.exit()
        }
    }
}
