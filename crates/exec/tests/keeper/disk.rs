//! A full disk: a real one, as small as a file system in memory can be made.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use lodge_exec::{Evidence, Executor, ExitOutcome, KeeperCommand, KeeperEvent};

use crate::home::{BOX, SandboxHome, exited, next, until};

/// Names the directory of the test that runs again, in a mount namespace with a small disk in it.
const INSIDE: &str = "LODGE_TEST_SMALL_DISK";
const DISK: &str = "size=1m,mode=0700";

/// Where `run/` of the state directory is a small disk. None: this ran the test again, where it is, and it passed.
fn small_disk(test: &str) -> Option<PathBuf> {
    if let Some(inside) = std::env::var_os(INSIDE) {
        return Some(inside.into());
    }
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("state/run");
    fs::create_dir_all(&run).unwrap();
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", &format!("disk::{test}"), "--nocapture"]).env(INSIDE, dir.path());
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let maps = (!uid.is_root()).then(|| {
        [
            (c"/proc/self/setgroups", "deny".to_owned()),
            (c"/proc/self/uid_map", format!("{0} {0} 1", uid.as_raw())),
            (c"/proc/self/gid_map", format!("{0} {0} 1", gid.as_raw())),
        ]
    });
    let target = CString::new(run.as_os_str().as_bytes()).unwrap();
    let options = CString::new(DISK).unwrap();
    let prepare = move || {
        let flags = libc::CLONE_NEWNS | if maps.is_some() { libc::CLONE_NEWUSER } else { 0 };
        // SAFETY: plain system calls on strings that the closure owns.
        unsafe {
            check(libc::unshare(flags))?;
            for (path, text) in maps.iter().flatten() {
                let fd = check(libc::open(path.as_ptr(), libc::O_WRONLY))?;
                check(libc::write(fd, text.as_ptr().cast(), text.len()) as i32)?;
                libc::close(fd);
            }
            let private = libc::MS_REC | libc::MS_PRIVATE;
            check(libc::mount(std::ptr::null(), c"/".as_ptr(), std::ptr::null(), private, std::ptr::null()))?;
            let kind = c"tmpfs".as_ptr();
            check(libc::mount(kind, target.as_ptr(), kind, 0, options.as_ptr().cast())).map(drop)
        }
    };
    // SAFETY: the closure makes only system calls, and allocates nothing.
    unsafe { again.pre_exec(prepare) };
    let output = again.output().unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    // A name that fits no test would succeed as well, without having run anything.
    assert!(output.status.success() && said.contains("test result: ok. 1 passed"), "{said}");
    None
}

fn check(result: i32) -> io::Result<i32> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Leaves no byte free.
fn fill(path: &Path) {
    let mut len = 64 * 1024;
    let mut file = fs::File::create(path).unwrap();
    while len > 0 {
        if io::Write::write_all(&mut file, &vec![1; len]).is_err() {
            len /= 2;
        }
    }
}

#[tokio::test]
async fn output_for_which_there_is_no_room_is_dropped_and_counted_and_the_exec_is_recorded() {
    let test = "output_for_which_there_is_no_room_is_dropped_and_counted_and_the_exec_is_recorded";
    let Some(dir) = small_disk(test) else { return };
    let home = SandboxHome::at(&dir);
    let mut link = home.up().await;
    let mut start = home.sh("e1", "head -c 4000000 /dev/zero; echo end > ended; exit 5");
    start.output_cap = 1 << 30;
    link.send(&KeeperCommand::Start(start)).await.unwrap();
    let record = exited(&mut link, "e1").await;
    assert_eq!((&record.ended, record.stdout.seen), (&ExitOutcome::Code(5), 4_000_000));
    assert!(record.stdout.kept < 1 << 20, "{record:?}");
    let dropped = format!("{} bytes of its stdout were dropped", 4_000_000 - record.stdout.kept);
    assert!(record.note.contains(&dropped) && record.note.contains("No space left"), "{record:?}");
    assert!(home.root.join("ended").exists());
    assert!(matches!(home.host.evidence(BOX, "e1"), Evidence::Exited(read) if read == record));
}

#[tokio::test]
async fn a_disk_that_fills_up_while_an_exec_runs_does_not_take_its_record() {
    let test = "a_disk_that_fills_up_while_an_exec_runs_does_not_take_its_record";
    let Some(dir) = small_disk(test) else { return };
    let home = SandboxHome::at(&dir);
    let mut link = home.up().await;
    let script = "echo > up; until test -e go; do sleep 0.01; done; echo out; echo err >&2; exit 6";
    link.send(&KeeperCommand::Start(home.sh("e1", script))).await.unwrap();
    until("it runs", || home.root.join("up").exists()).await;
    fill(&home.run().join("filler"));
    fs::write(home.root.join("go"), "").unwrap();
    let record = exited(&mut link, "e1").await;
    assert_eq!(record.ended, ExitOutcome::Code(6));
    assert!(record.note.contains("4 bytes of its stdout were dropped"), "{record:?}");
    assert!(matches!(home.host.evidence(BOX, "e1"), Evidence::Exited(read) if read == record));
}

#[tokio::test]
async fn an_exec_for_whose_record_there_is_no_room_is_refused_without_a_trace_and_runs_when_there_is() {
    let test = "an_exec_for_whose_record_there_is_no_room_is_refused_without_a_trace_and_runs_when_there_is";
    let Some(dir) = small_disk(test) else { return };
    let home = SandboxHome::at(&dir);
    let mut link = home.up().await;
    let filler = home.run().join("filler");
    fill(&filler);
    let start = KeeperCommand::Start(home.sh("e1", "echo ran >> effects"));
    link.send(&start).await.unwrap();
    match next(&mut link).await {
        KeeperEvent::Refused { why, recorded: false, .. } => assert!(why.contains("No space left"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(home.host.evidence(BOX, "e1"), Evidence::NoClaim));
    assert!(!home.root.join("effects").exists());
    fs::remove_file(&filler).unwrap();
    link.send(&start).await.unwrap();
    assert_eq!(exited(&mut link, "e1").await.ended, ExitOutcome::Code(0));
    assert_eq!(fs::read_to_string(home.root.join("effects")).unwrap(), "ran\n");
}
