//! lodged: the daemon's command line.

use std::process::ExitCode;

use lodge_daemon::config::{self, Config};
use lodge_daemon::{log, serve};

fn main() -> ExitCode {
    let command = clap::Command::new("lodged")
        .version(env!("CARGO_PKG_VERSION"))
        .about("The daemon of Lodge, a durable home for agents")
        .subcommand(config::command())
        .args(config::command().get_arguments().cloned())
        .args_conflicts_with_subcommands(true);
    let matches = match command.try_get_matches() {
        Ok(matches) => matches,
        Err(error) => {
            // Help and version go to stdout and are no failure.
            let code = if error.use_stderr() { 2 } else { 0 };
            return if error.print().is_ok() { ExitCode::from(code) } else { ExitCode::from(2) };
        }
    };
    let flags = matches.subcommand().map_or(&matches, |(_, flags)| flags);
    let config = match Config::resolve(flags, &|name| std::env::var(name).ok()) {
        Ok(config) => config,
        Err(error) => return fail(&error, Some(error.hint()), error.exit_code()),
    };
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let unknown = config::unknown_variables(names);
    // Everything in the state directory is the owner's alone, unless it says otherwise.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    // `lodge` starts this program by a descriptor, which would be its name.
    // Without it only `ps` shows a number.
    let _named = rustix::thread::set_name(c"lodged");
    hide_memory();
    keep_heap_small();
    end_on_panic();
    let level = log::start(&config);
    for what in &unknown {
        tracing::warn!(event = "config.unknown_variable", what);
    }
    let config = config.with_warnings(unknown);
    // Each live agent takes two descriptors.
    let file_limit = match lodge_exec::FileLimit::raise() {
        Ok(limit) => Some(limit),
        Err(error) => {
            tracing::warn!(event = "file_limit.not_raised", error = %error);
            None
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .thread_name("lodged")
        // Threads for blocking work go soon after it.
        .thread_keep_alive(std::time::Duration::from_secs(1))
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error, None, 1),
    };
    let served = runtime.block_on(serve::serve(config, level, file_limit));
    // Running tasks got the stop signal and their time.
    runtime.shutdown_background();
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error, error.hint(), error.exit_code()),
    }
}

/// Keys and secrets are in memory: no core dump, and only root may inspect or attach.
fn hide_memory() {
    // What cannot be hidden is as it was; the state directory's mode still keeps others out.
    if rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable).is_err() {}
}

/// One heap for all threads, which gives back what is free: the daemon idles most of its life.
fn keep_heap_small() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `mallopt` takes plain integers; no other thread exists yet.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 * 1024);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 128 * 1024);
    }
}

/// A panic leaves memory in doubt, while the disk is right: the process ends, and the next one continues.
fn end_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        use std::io::Write;
        report(panic);
        if let Some(task) = lodge_daemon::tasks::running() {
            // As plain as the report: the log may be what panicked.
            drop(writeln!(std::io::stderr(), "in the task `{task}`"));
        }
        std::process::abort();
    }));
}

fn fail(error: &dyn std::error::Error, hint: Option<String>, code: u8) -> ExitCode {
    use std::io::Write;
    let mut text = format!("error: {error}\n");
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(&format!("  because: {next}\n"));
        cause = next.source();
    }
    if let Some(hint) = hint {
        text.push_str(&format!("\nhint: {hint}\n"));
    }
    // The reader may have no space for it either; the exit code still reports it.
    drop(std::io::stderr().write_all(lodge_proto::visible::visible(&text).as_bytes()));
    ExitCode::from(code)
}
