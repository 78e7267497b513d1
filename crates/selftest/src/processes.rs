//! Processes of a state directory, according to the kernel.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The end of the command line of a runtime, for any root.
const RUNTIME: &str = "/opt/lodge/runtime ";

/// One keeper: its pid alone would not say that it is the same process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeeperProcess {
    pub pid: i32,
    /// Clock ticks since boot.
    pub started: u64,
}

/// The living keeper of a sandbox, by its own note and by the kernel's word.
pub fn keeper(home: &Path, sandbox: &str) -> Option<KeeperProcess> {
    let note = fs::read_to_string(home.join("run").join(sandbox).join("pid")).ok()?;
    let (pid, started) = note.trim().split_once(' ')?;
    let noted = KeeperProcess { pid: pid.parse().ok()?, started: started.parse().ok()? };
    (started_at(noted.pid)? == noted.started && is_alive(noted.pid)).then_some(noted)
}

fn started_at(pid: i32) -> Option<u64> {
    field(pid, 19)
}

/// A field of `/proc/<pid>/stat`, counted from the state on. The name before it may hold anything.
fn field<T: std::str::FromStr>(pid: i32, place: usize) -> Option<T> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(place)?.parse().ok()
}

/// Every living process whose program is named by a path in this directory. Quick, and enough to find keepers; what runs in
/// a sandbox has paths of its own.
pub fn named(dir: &Path) -> Vec<(i32, String)> {
    let prefix = beneath(dir);
    alive(|pid| read(pid, "cmdline").starts_with(&prefix))
}

/// Every live process that has to do with a directory, regardless of its name and parent: it was started with a path
/// in it, runs or has its working directory in it, or sees mounts of it that this process does not see.
///
/// A process can change its name, directory and environment, but not the mounts of its sandbox. If a sandbox has no
/// mounts of its own, only the other signs are available.
pub fn of(dir: &Path) -> Vec<(i32, String)> {
    // The daemon may name it by a link, the kernel never does.
    let real = fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
    let prefixes = [beneath(dir), beneath(&real)];
    let names = |text: &[u8]| prefixes.iter().any(|prefix| contains(text, prefix));
    let own_mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let as_root = mounted_from(&own_mounts, &real);
    let shows = |text: &[u8]| names(text) || as_root.as_ref().is_some_and(|root| contains(text, root));
    let mounts_tell = !shows(own_mounts.as_bytes());
    let own_pid = i32::try_from(std::process::id()).unwrap_or(0);
    let is_of = |pid: i32| {
        let told = |name: &str| names(&read(pid, name));
        let leads =
            |name: &str| fs::read_link(format!("/proc/{pid}/{name}")).is_ok_and(|to| to.starts_with(&real));
        let links = ["cwd", "exe", "root"];
        told("cmdline")
            || told("environ")
            || links.into_iter().any(leads)
            || (mounts_tell && shows(&read(pid, "mountinfo")))
    };
    alive(|pid| pid != own_pid && is_of(pid))
}

/// The entry of `mountinfo` for a mount of anything in a directory: its device, and its path there.
fn mounted_from(mountinfo: &str, dir: &Path) -> Option<Vec<u8>> {
    let mounts = mountinfo.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(2);
        let (device, root, point) = (words.next()?, words.next()?, words.next()?);
        let below = dir.strip_prefix(point).ok()?;
        Some((point.len(), device, Path::new(root).join(below)))
    });
    // The last of those at the same place covers the others.
    let (_, device, path) = mounts.max_by_key(|(len, ..)| *len)?;
    Some([device.as_bytes(), b" ", &beneath(&path)].concat())
}

/// The beginning of every path in a directory. The daemon and its clients name the directory itself, without a slash.
fn beneath(dir: &Path) -> Vec<u8> {
    let mut prefix = dir.as_os_str().as_bytes().to_vec();
    prefix.push(b'/');
    prefix
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// A file of a process in `/proc`; empty if the process is gone or not readable.
fn read(pid: i32, name: &str) -> Vec<u8> {
    fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default()
}

/// The living processes that are wanted, with their command lines.
fn alive(wanted: impl Fn(i32) -> bool) -> Vec<(i32, String)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| wanted(*pid) && is_alive(*pid)).map(|pid| (pid, line(pid))).collect()
}

fn line(pid: i32) -> String {
    String::from_utf8_lossy(&read(pid, "cmdline")).replace('\0', " ")
}

/// The runtime of a keeper, if it runs.
pub fn runtime(keeper: KeeperProcess) -> Option<i32> {
    let found = alive(|pid| descends(pid, keeper.pid));
    found.into_iter().find(|(_, line)| line.contains(RUNTIME)).map(|(pid, _)| pid)
}

/// Whether a process is a child of another, or a child of its child.
fn descends(pid: i32, from: i32) -> bool {
    let above = parent(pid);
    above == Some(from) || above.and_then(parent) == Some(from)
}

fn parent(pid: i32) -> Option<i32> {
    field(pid, 1)
}

/// Whether a process is there and not a zombie.
pub fn is_alive(pid: i32) -> bool {
    field::<String>(pid, 0).is_some_and(|state| state != "Z" && state != "X")
}

/// Ends a process as `kill -9` does. One that is gone already is no error.
pub fn kill9(pid: i32) {
    // SAFETY: sending a signal touches no memory of ours.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
    }
}

/// How many of these are keepers. What a keeper forked bears its name until it becomes something else.
pub fn keepers_in(processes: &[(i32, String)]) -> usize {
    let named: Vec<i32> =
        processes.iter().filter(|(_, line)| line.contains("/bin/keeper-")).map(|(pid, _)| *pid).collect();
    named.iter().filter(|pid| parent(**pid).is_none_or(|above| !named.contains(&above))).count()
}

/// Where the cgroups of a state directory lie, and how all of their names begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateDirCgroups {
    place: PathBuf,
    prefix: String,
}

impl StateDirCgroups {
    /// By the note that a keeper made of its own one, if it has one.
    pub fn noted(home: &Path, sandbox: &str) -> Option<StateDirCgroups> {
        let note = fs::read_to_string(home.join("run").join(sandbox).join("cgroup")).ok()?;
        StateDirCgroups::of(Path::new(note.trim()), sandbox)
    }

    fn of(path: &Path, sandbox: &str) -> Option<StateDirCgroups> {
        let (prefix, _) = path.file_name()?.to_str()?.split_once(sandbox)?;
        Some(StateDirCgroups { place: path.parent()?.to_owned(), prefix: prefix.to_owned() })
    }

    /// Those that are there.
    pub fn left(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(&self.place) else { return Vec::new() };
        let is_ours = |name: &str| name.starts_with(&self.prefix);
        let ours = entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_ours));
        ours.map(|entry| entry.path()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::throw_away::ThrowAway;

    /// A process that goes with its test.
    struct SleepingChild(Child);

    impl SleepingChild {
        fn with(change: impl FnOnce(&mut Command) -> &mut Command) -> SleepingChild {
            let mut command = Command::new("sleep");
            command.arg("600").env_clear().current_dir("/").stdin(Stdio::null());
            SleepingChild(change(&mut command).spawn().unwrap())
        }

        fn is_in(&self, found: &[(i32, String)]) -> bool {
            found.iter().any(|(pid, _)| u32::try_from(*pid) == Ok(self.0.id()))
        }
    }

    impl Drop for SleepingChild {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    #[test]
    fn a_bare_sleep_is_found_by_where_it_stands_by_what_it_was_given_and_by_what_it_runs() {
        let dir = ThrowAway::new("lodge-processes-").unwrap();
        let copy = dir.path().join("program");
        fs::copy("/bin/sleep", &copy).unwrap();
        let stands = SleepingChild::with(|command| command.current_dir(dir.path()));
        let given = SleepingChild::with(|command| command.env("HOME", dir.path().join("agents/one/home")));
        // Its name says nothing, and it is given nothing.
        let link = ThrowAway::new("lodge-link-").unwrap();
        std::os::unix::fs::symlink(&copy, link.path().join("innocent")).unwrap();
        let mut runs = Command::new(link.path().join("innocent"));
        let runs = SleepingChild(runs.arg("600").env_clear().current_dir("/").spawn().unwrap());
        let found = of(dir.path());
        for (what, process) in [("cwd", &stands), ("environ", &given), ("exe", &runs)] {
            assert!(process.is_in(&found), "{what}: {found:?}");
            assert!(!process.is_in(&named(dir.path())), "{what} is in its name");
        }
    }

    #[test]
    fn a_sandbox_is_found_by_the_device_and_the_path_that_its_root_is_mounted_from() {
        let mounts = "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:31 /sub /tmp rw - tmpfs tmpfs rw\n";
        let told = |dir: &str| String::from_utf8(mounted_from(mounts, Path::new(dir)).unwrap()).unwrap();
        assert_eq!(told("/var/lib/lodge"), "8:1 /var/lib/lodge/");
        assert_eq!(told("/tmp/x"), "0:31 /sub/x/");
    }

    #[test]
    fn a_client_and_a_neighbour_are_not_of_the_directory() {
        let dir = ThrowAway::new("lodge-processes-").unwrap();
        let client = SleepingChild::with(|command| command.env("LODGE_HOME", dir.path()));
        let beside = format!("{}-beside/x", dir.path().display());
        let neighbour = SleepingChild::with(|command| command.env("HOME", beside));
        let found = of(dir.path());
        assert!(!client.is_in(&found) && !neighbour.is_in(&found), "{found:?}");
    }

    #[test]
    fn a_cgroup_that_is_left_is_found_by_the_name_of_its_state_directory() {
        let place = ThrowAway::new("lodge-cgroups-").unwrap();
        let made = |name: &str| {
            let path = place.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let first = made("lodge-ab12-sbx_1.7-0");
        let cgroups = StateDirCgroups::of(&first, "sbx_1").unwrap();
        fs::remove_dir(first).unwrap();
        made("lodge-cd34-sbx_2.7-0");
        assert_eq!(cgroups.left(), Vec::<PathBuf>::new());
        let other = made("lodge-ab12-sbx_2.9-1");
        assert_eq!(cgroups.left(), [other]);
    }
}
