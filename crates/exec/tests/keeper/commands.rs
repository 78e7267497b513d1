//! Commands of clients: their output lies in the log directory while they run, and survives their keeper.

use std::fs;
use std::path::PathBuf;

use lodge_exec::{Bind, ExecKind, Executor, ExitOutcome, KeeperCommand, KeeperEvent, SandboxSpec, StartExec};

use crate::home::{SandboxHome, exited, next};

/// A home with a log directory, which is bound into the sandbox.
fn with_logs(home: &SandboxHome) -> (SandboxSpec, PathBuf) {
    let logs = home.state().join("logs-of-box");
    fs::create_dir_all(&logs).unwrap();
    let inside = home.root.join("var/log");
    fs::create_dir_all(&inside).unwrap();
    let bind = Bind::read_only(logs.clone(), inside);
    (SandboxSpec { logs: Some(logs.clone()), binds: vec![bind], ..home.spec() }, logs)
}

fn command(home: &SandboxHome, exec: &str, script: &str) -> StartExec {
    StartExec { kind: ExecKind::Command, ..home.sh(exec, script) }
}

#[tokio::test]
async fn the_output_of_a_command_lies_in_the_log_directory_and_its_progress_is_reported() {
    let home = SandboxHome::new();
    let (spec, logs) = with_logs(&home);
    home.host.start(&spec).await.unwrap();
    let mut link = home.dial(1).await;
    let script = "echo begun; echo err >&2; until test -e go; do sleep 0.01; done; echo over";
    link.send(&KeeperCommand::Start(command(&home, "chosen-1", script))).await.unwrap();
    let is_begun =
        |event: &KeeperEvent| matches!(event, KeeperEvent::Output { kind: ExecKind::Command, stdout: 6, .. });
    while !is_begun(&next(&mut link).await) {}
    let read = |stream: &str| fs::read_to_string(logs.join(format!("chosen-1.{stream}.log"))).unwrap();
    assert_eq!(read("stdout"), "begun\n");
    fs::write(home.root.join("go"), "").unwrap();
    let record = exited(&mut link, "chosen-1").await;
    assert_eq!((record.ended, record.stdout.kept), (ExitOutcome::Code(0), 11));
    assert_eq!((read("stdout"), read("stderr")), ("begun\nover\n".into(), "err\n".into()));
    // The record goes, the output stays.
    link.send(&KeeperCommand::Forget { exec: "chosen-1".to_owned() }).await.unwrap();
    link.send(&KeeperCommand::Start(command(&home, "next-1", "cat var/log/chosen-1.stdout.log")))
        .await
        .unwrap();
    exited(&mut link, "next-1").await;
    assert_eq!(fs::read_to_string(logs.join("next-1.stdout.log")).unwrap(), "begun\nover\n");
    assert_eq!(home.execs(), ["next-1"]);
}

#[tokio::test]
async fn a_sandbox_without_a_log_directory_runs_no_commands() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    link.send(&KeeperCommand::Start(command(&home, "chosen-1", "true"))).await.unwrap();
    while !matches!(next(&mut link).await, KeeperEvent::Refused { recorded: false, .. }) {}
    assert_eq!(home.execs(), Vec::<String>::new(), "its claim was taken back");
}
