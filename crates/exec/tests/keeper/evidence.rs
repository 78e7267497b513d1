//! Crashes at each point of an exec, and files that an enemy could have left.

use std::fs;
use std::os::unix::fs::symlink;

use lodge_exec::{
    Evidence, ExecStream, Executor, ExitOutcome, ExitRecord, KeeperCommand, ResourceUsage, SandboxReadError,
    StreamCount,
};

use crate::home::{BOX, PATIENCE, SandboxHome};

/// Starts an exec under a keeper that dies at `point`, and returns the evidence after its death.
async fn crash_at(point: &str) -> (SandboxHome, Evidence) {
    let home = SandboxHome::new();
    let mut spec = home.spec();
    spec.failpoint = Some(point.to_owned());
    home.host.start(&spec).await.unwrap();
    let mut link = home.dial(1).await;
    link.send(&KeeperCommand::Start(home.sh("e1", "echo ran >> effects"))).await.unwrap();
    let lost = async { while link.next().await.is_some() {} };
    tokio::time::timeout(PATIENCE, lost).await.unwrap();
    assert!(home.host.wait_gone(BOX, PATIENCE).await);
    let evidence = home.host.evidence(BOX, "e1");
    (home, evidence)
}

#[tokio::test]
async fn a_keeper_that_dies_after_the_claim_leaves_a_claim_and_no_effect() {
    let (home, evidence) = crash_at("keeper.after_claim").await;
    assert!(matches!(evidence, Evidence::Claimed), "{evidence:?}");
    assert!(!home.root.join("effects").exists());
}

#[tokio::test]
async fn a_keeper_that_dies_before_the_record_leaves_a_claim() {
    for point in ["keeper.after_spawn", "keeper.before_exit_record"] {
        let (_home, evidence) = crash_at(point).await;
        assert!(matches!(evidence, Evidence::Claimed), "{point}: {evidence:?}");
    }
}

#[tokio::test]
async fn a_keeper_that_dies_after_the_record_leaves_the_outcome() {
    let (home, evidence) = crash_at("keeper.after_exit_record").await;
    assert!(matches!(evidence, Evidence::Exited(_)), "{evidence:?}");
    assert_eq!(fs::read_to_string(home.root.join("effects")).unwrap(), "ran\n");
}

#[test]
fn a_record_that_is_no_plain_file_is_refused() {
    let home = SandboxHome::new();
    let dir = home.exec_dir("e1");
    let exit = dir.join("exit");
    assert!(matches!(home.host.evidence(BOX, "e1"), Evidence::NoClaim));
    fs::create_dir_all(&dir).unwrap();
    assert!(matches!(home.host.evidence(BOX, "e1"), Evidence::Claimed));

    let is_not_plain = |evidence| matches!(evidence, Evidence::Unreadable(SandboxReadError::NotPlain { .. }));
    symlink("/etc/passwd", &exit).unwrap();
    assert!(is_not_plain(home.host.evidence(BOX, "e1")), "a link");
    fs::remove_file(&exit).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &exit, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    assert!(is_not_plain(home.host.evidence(BOX, "e1")), "a fifo");
    fs::remove_file(&exit).unwrap();
    fs::write(dir.join("other"), "x").unwrap();
    fs::hard_link(dir.join("other"), &exit).unwrap();
    assert!(is_not_plain(home.host.evidence(BOX, "e1")), "two names");
    fs::remove_file(&exit).unwrap();
    fs::write(&exit, vec![0; 1 << 20]).unwrap();
    let long = home.host.evidence(BOX, "e1");
    assert!(matches!(long, Evidence::Unreadable(SandboxReadError::TooLong { .. })), "{long:?}");
}

#[test]
fn a_directory_that_is_a_link_is_not_followed() {
    let home = SandboxHome::new();
    fs::create_dir_all(home.run().join("exec")).unwrap();
    let elsewhere = home.state().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("stdout"), "secret").unwrap();
    symlink(&elsewhere, home.exec_dir("e1")).unwrap();
    let evidence = home.host.evidence(BOX, "e1");
    assert!(matches!(evidence, Evidence::Unreadable(_)), "{evidence:?}");
    let read = home.host.read_output(BOX, "e1", ExecStream::Stdout, 100, 100);
    assert!(matches!(read, Err(SandboxReadError::NotPlain { .. })), "{read:?}");
    for bad in ["../box", "", "a/b"] {
        let read = home.host.read_output(BOX, bad, ExecStream::Stdout, 100, 100);
        assert!(matches!(read, Err(SandboxReadError::BadId { .. })), "{read:?}");
    }
}

#[test]
fn remains_of_a_record_are_a_claim_and_a_record_of_an_older_keeper_is_an_outcome() {
    let home = SandboxHome::new();
    let dir = home.exec_dir("e1");
    let exit = dir.join("exit");
    fs::create_dir_all(&dir).unwrap();
    let record = ExitRecord {
        ended: ExitOutcome::Code(0),
        started_ms: 1,
        finished_ms: 2,
        stdout: StreamCount::default(),
        stderr: StreamCount::default(),
        usage: ResourceUsage::default(),
        note: "n".repeat(1500),
        cause: None,
    };
    let sealed = record.seal("e1", lodge_exec::ExecKind::Tool);
    for whole in [sealed.clone(), record.encode()] {
        fs::write(&exit, whole).unwrap();
        let evidence = home.host.evidence(BOX, "e1");
        assert!(matches!(&evidence, Evidence::Exited(read) if *read == record), "{evidence:?}");
    }
    let mut remains: Vec<Vec<u8>> = (0..sealed.len()).map(|len| sealed[..len].to_vec()).collect();
    remains.extend((0..sealed.len()).step_by(512).map(|from| {
        let mut lost = sealed.clone();
        let to = lost.len().min(from + 512);
        lost[from..to].fill(0);
        lost
    }));
    remains.extend([vec![0; sealed.len()], vec![0; lodge_exec::limits::RECORD_MAX], b"nonsense".to_vec()]);
    for bytes in remains {
        fs::write(&exit, &bytes).unwrap();
        let evidence = home.host.evidence(BOX, "e1");
        assert!(matches!(evidence, Evidence::Claimed), "{} bytes: {evidence:?}", bytes.len());
    }
}
