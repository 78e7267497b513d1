//! What is put on the host for agents to reach for: secrets, sockets, a terminal, shared memory.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

pub const CANARY: &str = "canary-that-sings-outside";
/// Places where hosts have world-accessible files and sockets.
const PLACES: [&str; 12] = [
    "/tmp",
    "/var/tmp",
    "/dev/shm",
    "/run",
    "/root",
    "/home",
    "/var/lib",
    "/opt",
    "/srv",
    "/mnt",
    "/etc",
    "/usr/local",
];
/// Shown to agents whose programs are the host's: what lies there is theirs to read.
const SHOWN: &str = "/usr";

/// Everything that was put somewhere. Dropping it takes it away.
#[derive(Debug)]
pub struct Targets {
    /// What all names have in common.
    pub name: String,
    dirs: Vec<PathBuf>,
    listeners: Vec<(String, UnixListener)>,
    pub sockets: Vec<PathBuf>,
    pub secrets: Vec<PathBuf>,
    /// Each with its reader.
    fifos: Vec<(PathBuf, fs::File)>,
    /// How the secrets were.
    marks: Vec<(PathBuf, FileMark)>,
    terminal: OwnedFd,
    pub terminal_path: PathBuf,
    pub shm_key: i32,
    shm: i32,
}

impl Targets {
    pub fn plant() -> Targets {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("escape-{}-{number}", std::process::id());
        let (mut dirs, mut listeners) = (Vec::new(), Vec::new());
        let (mut sockets, mut secrets, mut fifos) = (Vec::new(), Vec::new(), Vec::new());
        // If this user cannot write there, the place contains nothing for it.
        for dir in
            PLACES.iter().map(|place| Path::new(place).join(&name)).filter(|dir| fs::create_dir(dir).is_ok())
        {
            fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).expect("a mode");
            let (secret, socket) = (dir.join("secret"), dir.join("docker.sock"));
            fs::write(&secret, CANARY).expect("a file");
            fs::set_permissions(&secret, fs::Permissions::from_mode(0o666)).expect("a mode");
            let listener = UnixListener::bind(&socket).expect("a socket");
            fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).expect("a mode");
            listeners.push((socket.display().to_string(), listener));
            fifos.push(fifo(&dir.join("fifo")));
            if !dir.starts_with(SHOWN) {
                secrets.push(secret);
            }
            sockets.push(socket);
            dirs.push(dir);
        }
        assert!(!dirs.is_empty(), "a place to write in");
        let abstract_name = SocketAddr::from_abstract_name(&name).expect("a name");
        let listener = UnixListener::bind_addr(&abstract_name).expect("a socket");
        listeners.push((format!("@{name}"), listener));
        for (_, listener) in &listeners {
            listener.set_nonblocking(true).expect("a setting");
        }
        let (terminal, terminal_path) = terminal();
        let shm_key = 0x1000_0000 | (std::process::id().cast_signed() & 0xffff) << 8 | number.cast_signed();
        Targets {
            shm: shared_memory(shm_key),
            name,
            dirs,
            listeners,
            sockets,
            marks: secrets.iter().map(|secret| (secret.clone(), mark(secret))).collect(),
            secrets,
            fifos,
            terminal,
            terminal_path,
            shm_key,
        }
    }

    /// All changes to them, as sentences.
    pub fn touched(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (name, listener) in &self.listeners {
            if listener.accept().is_ok() {
                found.push(format!("somebody dialled {name}"));
            }
        }
        for secret in &self.secrets {
            if fs::read_to_string(secret).ok().as_deref() != Some(CANARY) {
                found.push(format!("{} is another", secret.display()));
            }
        }
        for (secret, before) in &self.marks {
            if mark(secret) != *before {
                found.push(format!("mode, times or attributes of {} are others", secret.display()));
            }
        }
        for (path, reader) in &self.fifos {
            if matches!(io::Read::read(&mut &*reader, &mut [0; 16]), Ok(1..)) {
                found.push(format!("somebody wrote to {}", path.display()));
            }
        }
        for dir in &self.dirs {
            let names = fs::read_dir(dir).map(|names| names.count());
            if names.ok() != Some(3) {
                found.push(format!("something was put into {}", dir.display()));
            }
        }
        let mut words = [0u8; 64];
        // SAFETY: the kernel writes at most the array's length into it.
        let len = unsafe { libc::read(self.terminal.as_raw_fd(), words.as_mut_ptr().cast(), words.len()) };
        if len > 0 {
            found.push("somebody wrote to the terminal".to_owned());
        }
        found
    }
}

impl Targets {
    pub fn fifos(&self) -> Vec<&Path> {
        self.fifos.iter().map(|(path, _)| path.as_path()).collect()
    }
}

/// Mode, owner, time of the last change of the contents, and attributes.
type FileMark = (u32, u32, i64, bool);

fn mark(path: &Path) -> FileMark {
    let found = fs::symlink_metadata(path).expect("a file");
    let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).expect("a path");
    // SAFETY: both texts are C strings that outlive the call; with no room announced, the kernel only counts.
    let len = unsafe { libc::getxattr(name.as_ptr(), c"user.planted".as_ptr(), std::ptr::null_mut(), 0) };
    (found.mode(), found.uid(), found.mtime(), len >= 0)
}

/// A world-writable FIFO, and its reader.
fn fifo(path: &Path) -> (PathBuf, fs::File) {
    let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).expect("a path");
    // SAFETY: the path is a C string that outlives the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o666) }, 0);
    fs::set_permissions(path, fs::Permissions::from_mode(0o666)).expect("a mode");
    let reader = fs::File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).expect("a reader");
    (path.to_owned(), reader)
}

impl Drop for Targets {
    fn drop(&mut self) {
        for dir in &self.dirs {
            drop(fs::remove_dir_all(dir));
        }
        // SAFETY: no memory is passed; the segment is ours.
        unsafe { libc::shmctl(self.shm, libc::IPC_RMID, std::ptr::null_mut()) };
    }
}

/// A world-accessible terminal: its own end, and the name of the other.
fn terminal() -> (OwnedFd, PathBuf) {
    // SAFETY: the buffer is as long as is announced and outlives the calls; the descriptor is new.
    unsafe {
        let fd = libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC | libc::O_NONBLOCK);
        assert!(fd >= 0, "a terminal: {}", io::Error::last_os_error());
        let fd = OwnedFd::from_raw_fd(fd);
        assert_eq!((libc::grantpt(fd.as_raw_fd()), libc::unlockpt(fd.as_raw_fd())), (0, 0));
        let mut name = [0; 64];
        assert_eq!(libc::ptsname_r(fd.as_raw_fd(), name.as_mut_ptr(), name.len()), 0);
        let name = std::ffi::CStr::from_ptr(name.as_ptr()).to_str().expect("a name").to_owned();
        fs::set_permissions(&name, fs::Permissions::from_mode(0o666)).expect("a mode");
        (fd, PathBuf::from(name))
    }
}

fn shared_memory(key: i32) -> i32 {
    // SAFETY: the segment is as long as what is copied into it, and stays attached meanwhile.
    unsafe {
        let id = libc::shmget(key, 4096, libc::IPC_CREAT | 0o666);
        assert!(id >= 0, "shared memory: {}", io::Error::last_os_error());
        let at = libc::shmat(id, std::ptr::null(), 0);
        assert_ne!(at.addr(), usize::MAX, "{}", io::Error::last_os_error());
        std::ptr::copy_nonoverlapping(CANARY.as_ptr(), at.cast(), CANARY.len());
        libc::shmdt(at);
        id
    }
}
