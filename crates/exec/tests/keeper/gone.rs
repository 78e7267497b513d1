//! The proof that a sandbox is completely gone, and the behaviour where no proof is available.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lodge_exec::{Executor, SandboxSpec, StartError};

use crate::home::{BOX, PATIENCE, SandboxHome, mark, processes_with, until};

/// Long enough for a wrong answer.
const MOMENT: Duration = Duration::from_millis(300);

/// A file that exists and that no user can read.
fn spoil(file: &Path) -> PathBuf {
    let aside = file.with_extension("aside");
    fs::rename(file, &aside).unwrap();
    symlink(&aside, file).unwrap();
    aside
}

#[tokio::test]
async fn a_sandbox_of_which_nobody_can_tell_is_neither_gone_nor_started_again() {
    for file in ["pid", "cgroup"] {
        let home = SandboxHome::new();
        drop(home.up().await);
        home.kill_keeper();
        until("its lock is free", || !home.host.is_held(BOX)).await;
        let file = home.run().join(file);
        let aside = spoil(&file);
        assert!(!home.host.wait_gone(BOX, MOMENT).await, "{}", file.display());
        if file.ends_with("cgroup") {
            match home.host.start(&home.spec()).await {
                Err(error @ StartError::OldTree { .. }) => assert_eq!(error.code(), "sandbox.old_tree"),
                other => panic!("{other:?}"),
            }
            assert!(home.host.remove(BOX).await.is_err());
        }
        fs::rename(&aside, &file).unwrap();
        assert!(home.host.wait_gone(BOX, PATIENCE).await);
        home.host.start(&home.spec()).await.unwrap();
    }
}

#[tokio::test]
async fn remains_of_what_a_keeper_wrote_down_name_nobody() {
    let home = SandboxHome::new();
    drop(home.up().await);
    home.kill_keeper();
    assert!(home.host.wait_gone(BOX, PATIENCE).await);
    for remains in ["", "\0\0\0\0\0\0", "12", "0 0\n", "-4 7\n", "99999999 5\n"] {
        fs::write(home.run().join("pid"), remains).unwrap();
        fs::write(home.run().join("cgroup"), remains).unwrap();
        assert!(home.host.wait_gone(BOX, PATIENCE).await, "{remains:?}");
        assert!(!home.host.kill_keeper(BOX).await.unwrap(), "{remains:?}");
    }
}

/// The cgroups of the sandbox, if the host has any.
fn cgroups(home: &SandboxHome) -> Option<Vec<PathBuf>> {
    let path = fs::read_to_string(home.run().join("cgroup")).unwrap();
    (!path.is_empty()).then(|| cgroups_beside(Path::new(&path)))
}

fn cgroups_beside(path: &Path) -> Vec<PathBuf> {
    let family = path.file_name().unwrap().to_str().unwrap().split_once('.').unwrap().0;
    let entries = fs::read_dir(path.parent().unwrap()).unwrap().flatten().map(|entry| entry.path());
    entries.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(family)).collect()
}

#[tokio::test]
async fn a_launch_that_fails_leaves_no_cgroup_behind() {
    let home = SandboxHome::new();
    drop(home.up().await);
    let Some(found) = cgroups(&home) else { return };
    assert_eq!(found.len(), 1);
    let list = || cgroups_beside(&found[0]);
    home.kill_keeper();
    assert!(home.host.wait_gone(BOX, PATIENCE).await);
    let nowhere = SandboxSpec { root: home.root.join("nowhere"), ..home.spec() };
    home.host.start(&nowhere).await.unwrap_err();
    assert_eq!(list(), Vec::<PathBuf>::new());
    // This one gets as far as to a keeper, which gives up.
    fs::remove_file(home.run().join("k")).unwrap();
    fs::create_dir(home.run().join("k")).unwrap();
    assert_eq!(home.host.start(&home.spec()).await.unwrap_err().code(), "sandbox.keeper_gave_up");
    assert_eq!(list(), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn a_populated_cgroup_that_nobody_wrote_down_is_ended_before_the_next_keeper() {
    let home = SandboxHome::new();
    let mut link = home.up_without(Some("keeper.no_namespaces")).await;
    if cgroups(&home).is_none() || link.welcome.layers.iter().any(|l| l.name == "kill" && l.missing.is_some())
    {
        // Without a cgroup the guardians do it, which is tested with the kills.
        return;
    }
    let mark = mark();
    home.run_sh(&mut link, "e1", &format!("(setsid sleep {mark} &)")).await;
    until("it lives", || !processes_with(&mark).is_empty()).await;
    home.kill_keeper();
    until("its lock is free", || !home.host.is_held(BOX)).await;
    assert!(!processes_with(&mark).is_empty());
    fs::remove_file(home.run().join("cgroup")).unwrap();
    home.host.start(&home.spec()).await.unwrap();
    assert!(processes_with(&mark).is_empty());
    assert_eq!(cgroups(&home).unwrap().len(), 1);
}
