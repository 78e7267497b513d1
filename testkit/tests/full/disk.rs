//! A small disk of a test's own: a tmpfs in a mount namespace, and a user namespace when not root.

use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The place of the disk, for the process inside the namespaces.
const INSIDE: &str = "LODGE_TEST_DISK";
const DISK_MIB: u64 = 64;

/// Runs `test`, which is the test called `name`, in a process that has a disk of its own.
///
/// A host that cannot give it one fails the test: what was not tried was not shown.
pub fn with_disk<F: Future<Output = ()>>(name: &str, test: impl FnOnce(SmallDisk) -> F) {
    if let Some(dir) = std::env::var_os(INSIDE) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        return runtime.expect("a runtime").block_on(test(SmallDisk { dir: PathBuf::from(dir) }));
    }
    let dir = tempfile::Builder::new().prefix("lodge-disk-").tempdir().expect("a directory");
    let mut command = Command::new(std::env::current_exe().expect("a running program has a path"));
    command.args([name, "--exact", "--nocapture"]).env(INSIDE, dir.path());
    let plan = MountPlan::new(dir.path());
    // SAFETY: `enter` makes system calls on values made before the fork, and allocates nothing.
    unsafe {
        command.pre_exec(move || plan.enter());
    }
    let output =
        command.output().expect("a user and a mount namespace with a tmpfs can be made on this host");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{name}: {}\n{out}\n{err}", output.status);
}

/// What the child does between fork and exec, prepared.
struct MountPlan {
    dir: CString,
    options: CString,
    maps: Option<[(&'static CStr, Vec<u8>); 3]>,
}

impl MountPlan {
    fn new(dir: &Path) -> MountPlan {
        // SAFETY: both only read properties of the process.
        let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        let map = |id: u32| format!("{id} {id} 1").into_bytes();
        let maps = [
            (c"/proc/self/setgroups", b"deny".to_vec()),
            (c"/proc/self/uid_map", map(uid)),
            (c"/proc/self/gid_map", map(gid)),
        ];
        MountPlan {
            dir: CString::new(dir.as_os_str().as_bytes()).expect("a path without NUL"),
            options: CString::new(format!("size={DISK_MIB}m,mode=700")).expect("no NUL"),
            maps: (uid != 0).then_some(maps),
        }
    }

    fn enter(&self) -> io::Result<()> {
        let flags = libc::CLONE_NEWNS | if self.maps.is_some() { libc::CLONE_NEWUSER } else { 0 };
        // SAFETY: plain system calls on C strings that outlive them; the process has one thread here.
        unsafe {
            done(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
            done(libc::unshare(flags))?;
            for (file, text) in self.maps.iter().flatten() {
                let file = libc::open(file.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
                done(file)?;
                done(i32::try_from(libc::write(file, text.as_ptr().cast(), text.len())).unwrap_or(0))?;
            }
            let private = libc::MS_REC | libc::MS_PRIVATE;
            done(libc::mount(std::ptr::null(), c"/".as_ptr(), std::ptr::null(), private, std::ptr::null()))?;
            let (kind, options) = (c"tmpfs".as_ptr(), self.options.as_ptr().cast());
            done(libc::mount(kind, self.dir.as_ptr(), kind, libc::MS_NOSUID | libc::MS_NODEV, options))
        }
    }
}

fn done(returned: i32) -> io::Result<()> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A disk that can be filled to the last byte.
#[derive(Debug)]
pub struct SmallDisk {
    dir: PathBuf,
}

impl SmallDisk {
    /// The directory for a daemon's state.
    pub fn home(&self) -> PathBuf {
        self.dir.join("home")
    }

    /// Fills it, except for this many bytes.
    pub fn fill(&self, leave: u64) {
        let path = self.dir.join("filler");
        let mut filler = File::options().create(true).append(true).open(&path).expect("a file");
        let piece = vec![0; 1 << 20];
        let mut len = piece.len();
        while len > 0 {
            match filler.write(&piece[..len]) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::StorageFull => len /= 2,
                Err(error) => panic!("{error}"),
            }
        }
        let length = filler.metadata().expect("a length").len();
        filler.set_len(length.checked_sub(leave).expect("so much was free")).expect("a shorter file");
    }

    /// Takes the daemon's reserve, as another process could.
    pub fn steal_reserve(&self) {
        File::options()
            .write(true)
            .open(self.home().join("reserve"))
            .expect("a reserve")
            .set_len(0)
            .expect("a file");
    }

    /// How many bytes are free.
    pub fn room(&self) -> u64 {
        let path = CString::new(self.dir.as_os_str().as_bytes()).expect("a path without NUL");
        // SAFETY: all zeroes are a valid struct, which the kernel fills in; the path outlives the call.
        unsafe {
            let mut found: libc::statvfs = std::mem::zeroed();
            assert_eq!(libc::statvfs(path.as_ptr(), &raw mut found), 0, "{}", io::Error::last_os_error());
            found.f_bavail * found.f_frsize
        }
    }

    pub fn free(&self) {
        fs::remove_file(self.dir.join("filler")).expect("a filled disk");
    }
}
