//! The operator's mounts, checked: what of the host may be shown, where, and that nothing covers or betrays anything else.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use lodge_core::record::MountRecord;
use lodge_proto::{ErrorBody, Mount};

use super::mount_owner::mapped_owner;
use crate::shell::Shell;

/// Mounts of one agent.
const MOUNTS_MAX: usize = 64;
/// Each is a path of the kernel, and is shown to the model.
const TARGET_BYTES_MAX: usize = 1_024;
const DESCRIPTION_BYTES_MAX: usize = 1_024;
/// Parts of an agent's root that are Lodge's: made again at every start, wiped, or kept for the agent.
const OURS: [&str; 13] =
    ["etc", "usr", "tmp", "var", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "proc", "dev", "sys"];
/// Parts that may hold mounts and are not to be covered whole.
const OURS_ITSELF: [&str; 2] = ["home", "opt"];
/// Parts of `/opt` that are Lodge's: tools, their images, and the runtime.
const OURS_IN_OPT: [&str; 3] = ["bins", "bin-images", "lodge"];
/// Directories of the kernel and its daemons, which contain no ordinary files.
const NOT_FILES: [&str; 4] = ["/proc", "/sys", "/dev", "/run"];
/// People's disks, which some hosts put there.
const REMOVABLE: &str = "/run/media";

/// What a mount must not show.
#[derive(Debug, Clone, Copy)]
struct ForbiddenMounts<'a> {
    /// The state directory, by its real path.
    state: &'a Path,
    /// The daemon's socket, which may lie elsewhere.
    socket: &'a Path,
}

/// Why one mount is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum MountRefusal {
    #[error("there are more than {MOUNTS_MAX} mounts")]
    TooMany,
    #[error("the path on the host is not absolute")]
    HostRelative,
    #[error("the target is not absolute")]
    TargetRelative,
    #[error("the target has `..` in it")]
    TargetParent,
    #[error("the target is the root itself")]
    TargetRoot,
    #[error("the target is longer than {TARGET_BYTES_MAX} bytes, or has control characters in it")]
    TargetOdd,
    #[error("the description is longer than {DESCRIPTION_BYTES_MAX} bytes, or has control characters in it")]
    DescriptionOdd,
    #[error("`/{part}` in the agent's root is Lodge's")]
    Ours { part: String },
    #[error("another mount has the same target")]
    Twice,
    #[error("its target and `{other}` lie in one another")]
    Nested { other: String },
    #[error("there is no such path on this host")]
    Missing,
    #[error("it is neither a file nor a directory")]
    NotAFile,
    #[error("it is a socket, through which the agent would reach another program")]
    Socket,
    #[error("it is the whole host")]
    Host,
    #[error("`{place}` contains no ordinary files")]
    Kernel { place: &'static str },
    #[error("it would show Lodge's own state directory to the agent")]
    State,
    #[error("it would show the daemon's socket to the agent")]
    DaemonSocket,
    #[error("it is to be read-only, and could be written through `{other}`")]
    Writable { other: String },
}

impl MountRefusal {
    fn hint(&self) -> &'static str {
        match self {
            MountRefusal::TooMany => "mount a directory above several of them",
            MountRefusal::HostRelative
            | MountRefusal::TargetRelative
            | MountRefusal::TargetParent
            | MountRefusal::TargetRoot => {
                "write HOST:TARGET[:DESCRIPTION][:ro|rw][,map-root]; both paths absolute, the target inside the agent's root"
            }
            MountRefusal::TargetOdd | MountRefusal::DescriptionOdd => "write something shorter, on one line",
            MountRefusal::Ours { .. } => {
                "use a target such as /workspace/name, /home/name, /mnt/name or /name"
            }
            MountRefusal::Twice | MountRefusal::Nested { .. } => {
                "give every mount a target of its own, beside the others"
            }
            MountRefusal::Missing => "make it first, or check the spelling",
            MountRefusal::NotAFile | MountRefusal::Socket => "mount a directory or a regular file",
            MountRefusal::Host
            | MountRefusal::Kernel { .. }
            | MountRefusal::State
            | MountRefusal::DaemonSocket => "mount the directory that the agent needs, and no more",
            MountRefusal::Writable { .. } => {
                "make both read-only, or mount directories that lie beside each other"
            }
        }
    }
}

/// Checks mounts, and gives them with the real paths of the host, so that a link that is changed later leads nowhere else.
/// `staying` are those that the agent has already; one of them with the same target makes way.
pub(in crate::api) fn mounts(
    shell: &Shell,
    given: &[Mount],
    staying: &[MountRecord],
) -> Result<Vec<MountRecord>, ErrorBody> {
    let socket = shell.config.socket_path();
    let forbidden = ForbiddenMounts { state: &shell.config.data_dir, socket: &socket };
    let mut checked = check_all(given, staying, forbidden)?;
    let trials = rustix::process::geteuid().is_root().then(|| &*shell.executor);
    for (mount, checked) in given.iter().zip(&mut checked) {
        checked.owner = mapped_owner(trials, mount, &checked.host)?;
    }
    Ok(checked)
}

fn check_all(
    given: &[Mount],
    staying: &[MountRecord],
    keep: ForbiddenMounts<'_>,
) -> Result<Vec<MountRecord>, ErrorBody> {
    let refuse = |mount: &Mount, refused: MountRefusal| {
        let what = format!("cannot mount {} at {}: {refused}", mount.host, mount.target);
        ErrorBody::new("agent.bad_mount", what).hint(refused.hint())
    };
    let mut checked: Vec<MountRecord> = Vec::new();
    for mount in given {
        checked.push(check(mount, keep).map_err(|refused| refuse(mount, refused))?);
    }
    let replaced = |mount: &&MountRecord| !checked.iter().any(|new| new.target == mount.target);
    let mut all: Vec<MountRecord> = staying.iter().filter(replaced).cloned().collect();
    for (mount, new) in given.iter().zip(&checked) {
        beside(new, &all).map_err(|refused| refuse(mount, refused))?;
        all.push(new.clone());
    }
    Ok(checked)
}

fn check(mount: &Mount, keep: ForbiddenMounts<'_>) -> Result<MountRecord, MountRefusal> {
    let target = check_target(&mount.target)?;
    let is_odd = |text: &str| text.len() > DESCRIPTION_BYTES_MAX || text.chars().any(char::is_control);
    let description = mount.description.as_deref().map(str::trim).filter(|text| !text.is_empty());
    if description.is_some_and(is_odd) {
        return Err(MountRefusal::DescriptionOdd);
    }
    Ok(MountRecord {
        host: check_host(Path::new(&mount.host), keep)?,
        target,
        read_only: mount.read_only,
        description: description.map(str::to_owned),
        owner: None,
    })
}

/// The target in its simplest spelling.
fn check_target(given: &str) -> Result<String, MountRefusal> {
    if given.len() > TARGET_BYTES_MAX || given.chars().any(char::is_control) {
        return Err(MountRefusal::TargetOdd);
    }
    let target = Path::new(given);
    if !target.is_absolute() {
        return Err(MountRefusal::TargetRelative);
    }
    let mut parts: Vec<&str> = Vec::new();
    for part in target.components() {
        match part {
            Component::ParentDir => return Err(MountRefusal::TargetParent),
            Component::Normal(part) => parts.extend(part.to_str()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    match parts[..] {
        [] => Err(MountRefusal::TargetRoot),
        [first, ..] if OURS.contains(&first) => Err(MountRefusal::Ours { part: first.to_owned() }),
        ["opt", part, ..] if OURS_IN_OPT.contains(&part) => {
            Err(MountRefusal::Ours { part: format!("opt/{part}") })
        }
        [only] if OURS_ITSELF.contains(&only) => Err(MountRefusal::Ours { part: only.to_owned() }),
        _ => Ok(format!("/{}", parts.join("/"))),
    }
}

fn check_host(given: &Path, keep: ForbiddenMounts<'_>) -> Result<String, MountRefusal> {
    if !given.is_absolute() {
        return Err(MountRefusal::HostRelative);
    }
    let host: PathBuf = given.canonicalize().map_err(|_| MountRefusal::Missing)?;
    let kind = host.metadata().map_err(|_| MountRefusal::Missing)?.file_type();
    if kind.is_socket() {
        return Err(MountRefusal::Socket);
    }
    if !kind.is_dir() && !kind.is_file() {
        return Err(MountRefusal::NotAFile);
    }
    if host == Path::new("/") {
        return Err(MountRefusal::Host);
    }
    let kernels = NOT_FILES.iter().find(|place| host.starts_with(place));
    if let Some(place) = kernels.filter(|_| !host.starts_with(REMOVABLE)) {
        return Err(MountRefusal::Kernel { place });
    }
    if is_above(keep.state, &host) || is_above(&host, keep.state) {
        return Err(MountRefusal::State);
    }
    let socket = keep.socket.canonicalize().unwrap_or_else(|_| keep.socket.to_owned());
    if is_above(&host, &socket) {
        return Err(MountRefusal::DaemonSocket);
    }
    // A path that is not text cannot be recorded as it is.
    host.to_str().map(str::to_owned).ok_or(MountRefusal::Missing)
}

/// Whether one path leads to the other or to something in it. A bind mount gives a directory a second path, so
/// directories are compared by what they are, too.
fn is_above(above: &Path, below: &Path) -> bool {
    let identity = |path: &Path| path.metadata().ok().map(|found| (found.dev(), found.ino()));
    let same = identity(above);
    below.starts_with(above) || (same.is_some() && below.ancestors().any(|path| identity(path) == same))
}

/// A mount beside those before it: neither covers the other, and read-only means that no way leads to writing.
fn beside(mount: &MountRecord, others: &[MountRecord]) -> Result<(), MountRefusal> {
    if others.len() >= MOUNTS_MAX {
        return Err(MountRefusal::TooMany);
    }
    for other in others {
        if other.target == mount.target {
            return Err(MountRefusal::Twice);
        }
        if within(&mount.target, &other.target) || within(&other.target, &mount.target) {
            return Err(MountRefusal::Nested { other: other.target.clone() });
        }
        let (writes, reads) = match (mount.read_only, other.read_only) {
            (true, false) => (other, mount),
            (false, true) => (mount, other),
            (true, true) | (false, false) => continue,
        };
        // Also when the one that may be written is the lower one: it is a part of what should not change.
        if within(&reads.host, &writes.host) || within(&writes.host, &reads.host) {
            return Err(MountRefusal::Writable { other: other.target.clone() });
        }
    }
    Ok(())
}

fn within(path: &str, above: &str) -> bool {
    Path::new(path).starts_with(above)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(host: &str, target: &str) -> Mount {
        Mount {
            host: host.to_owned(),
            target: target.to_owned(),
            read_only: false,
            description: None,
            map_root: false,
            owner: None,
        }
    }

    fn read_only(host: &str, target: &str) -> Mount {
        Mount { read_only: true, ..mount(host, target) }
    }

    /// A host with a state directory, a directory, a file, a link to the state directory and a socket.
    struct MountsWorld {
        dir: tempfile::TempDir,
        _listener: std::os::unix::net::UnixListener,
    }

    impl MountsWorld {
        fn new() -> MountsWorld {
            let dir = tempfile::tempdir().unwrap();
            let at = |name: &str| dir.path().join(name);
            for name in ["all", "all/state", "all/state/agents", "data", "data/sub", "elsewhere"] {
                std::fs::create_dir(at(name)).unwrap();
            }
            std::fs::write(at("data/file"), "x").unwrap();
            std::os::unix::fs::symlink(at("all/state"), at("link")).unwrap();
            std::os::unix::fs::symlink(at("all"), at("link-above")).unwrap();
            std::os::unix::fs::symlink("link", at("link-to-link")).unwrap();
            std::os::unix::fs::symlink(at("nowhere"), at("dangling")).unwrap();
            let listener = std::os::unix::net::UnixListener::bind(at("data/socket")).unwrap();
            let fifo = std::ffi::CString::new(at("fifo").to_str().unwrap()).unwrap();
            // SAFETY: the path is a C string that outlives the call.
            assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
            MountsWorld { dir, _listener: listener }
        }

        fn at(&self, name: &str) -> String {
            self.dir.path().canonicalize().unwrap().join(name).to_str().unwrap().to_owned()
        }

        fn check(&self, given: &[Mount]) -> Result<Vec<MountRecord>, ErrorBody> {
            let (state, socket) = (self.at("all/state"), self.at("elsewhere/lodge.sock"));
            check_all(given, &[], ForbiddenMounts { state: Path::new(&state), socket: Path::new(&socket) })
        }

        #[track_caller]
        fn refused(&self, given: &[Mount], why: &str) {
            let refused = self.check(given).expect_err(why);
            assert_eq!(refused.data.code, "agent.bad_mount");
            assert!(refused.message.contains(why) && refused.data.hint.is_some(), "{}", refused.message);
        }
    }

    #[test]
    fn every_bad_target_is_refused_for_its_own_reason() {
        let world = MountsWorld::new();
        let data = world.at("data");
        let long = format!("/{}", "x".repeat(TARGET_BYTES_MAX));
        for (target, why) in [
            ("work", "target is not absolute"),
            ("", "target is not absolute"),
            ("./work", "target is not absolute"),
            ("/a/../b", "`..` in it"),
            ("/..", "`..` in it"),
            ("/", "the root itself"),
            ("//", "the root itself"),
            ("/.", "the root itself"),
            ("/a\nb", "control characters"),
            ("/a\0b", "control characters"),
            (long.as_str(), "control characters"),
            ("/etc", "`/etc` in"),
            ("/etc/context", "`/etc` in"),
            ("/etc/context/SOUL.md", "`/etc` in"),
            ("/etc/data", "`/etc` in"),
            ("/etc/agent.yaml", "`/etc` in"),
            ("//etc//data/", "`/etc` in"),
            ("/./etc/data", "`/etc` in"),
            ("/usr/bin", "`/usr` in"),
            ("/usr/bin/sh", "`/usr` in"),
            ("/usr/local/bin/runtime", "`/usr` in"),
            ("/bin/sh", "`/bin` in"),
            ("/lib64", "`/lib64` in"),
            ("/proc/self", "`/proc` in"),
            ("/dev", "`/dev` in"),
            ("/sys/fs/cgroup", "`/sys` in"),
            ("/opt", "`/opt` in"),
            ("/opt/bins", "`/opt/bins` in"),
            ("/opt/bin-images/sh/sh", "`/opt/bin-images` in"),
            ("/opt/lodge/runtime", "`/opt/lodge` in"),
            ("/var", "`/var` in"),
            ("/var/lib/x", "`/var` in"),
            ("/tmp/x", "`/tmp` in"),
            ("/home", "`/home` in"),
            ("/home/", "`/home` in"),
        ] {
            world.refused(&[mount(&data, target)], why);
        }
        for (target, kept) in [
            ("/workspace", "/workspace"),
            ("/workspace/project/", "/workspace/project"),
            ("/home/notes", "/home/notes"),
            ("/opt/kit", "/opt/kit"),
            ("/library", "/library"),
            ("//mnt/./data//", "/mnt/data"),
            ("/etcetera", "/etcetera"),
            ("/..data", "/..data"),
            ("/dätä mit blank", "/dätä mit blank"),
        ] {
            assert_eq!(world.check(&[mount(&data, target)]).unwrap()[0].target, kept);
        }
    }

    #[test]
    fn every_bad_path_of_the_host_is_refused_for_its_own_reason() {
        let world = MountsWorld::new();
        for (host, why) in [
            ("data", "host is not absolute"),
            ("~/data", "host is not absolute"),
            ("", "host is not absolute"),
            ("/", "the whole host"),
            ("/..", "the whole host"),
            ("/proc", "`/proc` contains no ordinary files"),
            ("/proc/self", "`/proc` contains no ordinary files"),
            ("/sys/kernel", "`/sys` contains no ordinary files"),
            ("/dev", "`/dev` contains no ordinary files"),
            ("/dev/null", "neither a file"),
            ("/run", "`/run` contains no ordinary files"),
        ] {
            world.refused(&[mount(host, "/mnt/x")], why);
        }
        for (name, why) in [
            ("nowhere", "no such path"),
            ("dangling", "no such path"),
            ("data/file/below", "no such path"),
            ("data/socket", "it is a socket"),
            ("fifo", "neither a file"),
            ("all/state", "state directory"),
            ("all/state/agents", "state directory"),
            ("all/state/agents/..", "state directory"),
            ("all", "state directory"),
            ("link", "state directory"),
            ("link-to-link", "state directory"),
            ("link-above", "state directory"),
            ("link-above/state", "state directory"),
            ("", "state directory"),
            ("elsewhere", "daemon's socket"),
        ] {
            world.refused(&[mount(&world.at(name), "/mnt/x")], why);
        }
        assert_eq!(
            world.check(&[mount(&world.at("data/file"), "/mnt/x")]).unwrap()[0].host,
            world.at("data/file")
        );
    }

    #[test]
    fn a_second_path_to_the_same_directory_does_not_hide_what_it_is() {
        let world = MountsWorld::new();
        let (state, file) = (world.at("all/state/secret"), world.at("data/second-name"));
        std::fs::write(&state, "x").unwrap();
        std::fs::hard_link(&state, &file).unwrap();
        // The spelling says nothing, as after `mount --bind`; what it leads to does.
        assert!(!Path::new(&file).starts_with(&state) && is_above(Path::new(&state), Path::new(&file)));
        assert!(is_above(Path::new(&world.at("link-above")), Path::new(&state)));
        assert!(!is_above(Path::new(&world.at("data")), Path::new(&state)));
        assert!(!is_above(Path::new(&world.at("nowhere")), Path::new(&world.at("dangling"))));
    }

    #[test]
    fn mounts_that_get_in_each_others_way_are_refused() {
        let world = MountsWorld::new();
        let (data, sub, file) = (world.at("data"), world.at("data/sub"), world.at("data/file"));
        world.refused(&[mount(&data, "/a"), mount(&file, "/a")], "the same target");
        world.refused(&[mount(&data, "/a"), mount(&sub, "//a/")], "the same target");
        world.refused(&[mount(&data, "/a"), mount(&sub, "/a/b")], "in one another");
        world.refused(&[mount(&sub, "/a/b/c"), mount(&data, "/a")], "in one another");
        world.refused(&[read_only(&data, "/a"), mount(&data, "/b")], "could be written through `/a`");
        world.refused(&[mount(&data, "/a"), read_only(&sub, "/b")], "could be written through `/a`");
        world.refused(&[read_only(&data, "/a"), mount(&sub, "/b")], "could be written through `/a`");
        let many: Vec<Mount> = (0..=MOUNTS_MAX).map(|n| mount(&data, &format!("/mnt/{n}"))).collect();
        world.refused(&many, "more than 64");
        assert_eq!(world.check(&many[..MOUNTS_MAX]).unwrap().len(), MOUNTS_MAX);
        let fine = [mount(&data, "/a"), mount(&sub, "/ab"), mount(&file, "/b/a")];
        assert_eq!(world.check(&fine).unwrap().len(), 3);
    }

    #[test]
    fn what_an_agent_has_already_counts_unless_it_is_replaced() {
        let world = MountsWorld::new();
        let (data, sub) = (world.at("data"), world.at("data/sub"));
        let (state, socket) = (world.at("all/state"), world.at("none"));
        let keep = ForbiddenMounts { state: Path::new(&state), socket: Path::new(&socket) };
        let has = check_all(&[read_only(&data, "/a")], &[], keep).unwrap();
        let refused = check_all(&[mount(&sub, "/b")], &has, keep).unwrap_err();
        assert!(refused.message.contains("could be written"), "{}", refused.message);
        assert_eq!(check_all(&[mount(&sub, "/a")], &has, keep).unwrap().len(), 1);
    }

    #[test]
    fn a_description_is_kept_trimmed_and_stays_on_one_line() {
        let world = MountsWorld::new();
        let described =
            |text: &str| Mount { description: Some(text.to_owned()), ..mount(&world.at("data"), "/a") };
        assert_eq!(
            world.check(&[described(" my: notes ")]).unwrap()[0].description.as_deref(),
            Some("my: notes")
        );
        assert_eq!(world.check(&[described("  ")]).unwrap()[0].description, None);
        world.refused(&[described("a\nb")], "description");
        world.refused(&[described(&"x".repeat(DESCRIPTION_BYTES_MAX + 1))], "description");
    }
}
