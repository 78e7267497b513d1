//! A copy of those parts of the host's `/etc` that programs need, for the `/etc` of agents.
//!
//! It is a copy, so that no socket, FIFO or secret of the host is in it: only links and world-readable files. All
//! agents share one directory, which is updated when the host's files change.
//!
//! Owns: `host-etc/` in the state directory. Everything there is derived and may be deleted while no agent runs.

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};

const HOST: &str = "/etc";
/// The copied paths, relative to `/etc`. They exclude settings and secrets of the host's users.
const PARTS: [&str; 24] = [
    "alternatives",
    "ca-certificates",
    "crypto-policies",
    "fonts",
    "gai.conf",
    "ld.so.cache",
    "locale.alias",
    "localtime",
    "manpath.config",
    "mime.types",
    "os-release",
    "perl",
    "pki/ca-trust/extracted",
    "pki/java",
    "pki/tls/cert.pem",
    "pki/tls/certs",
    "pki/tls/openssl.cnf",
    "protocols",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
    "vim",
];
/// Prefixes of names that end with a version.
const VERSIONED: [&str; 2] = ["java-", "python3"];
/// Links in this directory lead to programs, which are not copied.
const LINKS_ONLY: &str = "alternatives";
/// Where links of the host's `/etc` may lead: to world-readable package files, and to the files of a resolver. Files
/// elsewhere are not copied.
const SOURCES: [&str; 14] = [
    HOST,
    "/usr/share",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/share/ca-certificates",
    "/var/lib/ca-certificates",
    "/nix/store",
    "/gnu/store",
    "/run/systemd/resolve",
    "/run/NetworkManager",
    "/run/resolvconf",
    "/run/netconfig",
    "/run/connman",
    "/mnt/wsl",
];
/// Limits of the copy: the size of a file, the depth of directories, and the number of entries.
const FILE_BYTES_MAX: u64 = 4 << 20;
const DEPTH_MAX: usize = 8;
const ENTRIES_MAX: usize = 20_000;

/// The copy of one state directory.
#[derive(Debug)]
pub(crate) struct HostEtc {
    dir: PathBuf,
    /// The stamps of the host's files when they were copied.
    seen: Mutex<Option<Vec<FileStamp>>>,
}

/// A path with its device, inode, size and change time.
type FileStamp = (PathBuf, Option<(u64, u64, u64, i64, i64)>);

impl HostEtc {
    pub(crate) fn new(state_dir: &Path) -> HostEtc {
        HostEtc { dir: state_dir.join("host-etc"), seen: Mutex::default() }
    }

    /// The directory of the copy.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Updates the copy if the host's files changed.
    pub(crate) fn refresh(&self) -> io::Result<()> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let stamps = stamps(Path::new(HOST));
        if seen.as_ref() != Some(&stamps) {
            let parts: Vec<PathBuf> = stamps.iter().skip(1).map(|(part, _)| part.clone()).collect();
            copy(Path::new(HOST), &self.dir, &parts)?;
            *seen = Some(stamps);
        }
        Ok(())
    }
}

/// The text of one file of the host's `/etc`. Empty if it may not be copied.
pub(crate) fn text_of(name: &str) -> String {
    let path = Path::new(HOST).join(name);
    let may_read = |path: &Path| {
        leads_to_source(path, Path::new(HOST))
            && fs::metadata(path).is_ok_and(|found| found.is_file() && is_world_readable(&found))
    };
    if may_read(&path) { fs::read_to_string(&path).unwrap_or_default() } else { String::new() }
}

/// Whether a resolved path is in `host` or in one of [`SOURCES`].
fn leads_to_source(path: &Path, host: &Path) -> bool {
    let (real, host) = (path.canonicalize(), host.canonicalize());
    real.is_ok_and(|real| {
        host.is_ok_and(|host| real.starts_with(host)) || SOURCES.iter().any(|source| real.starts_with(source))
    })
}

fn is_world_readable(found: &Metadata) -> bool {
    found.mode() & 0o004 != 0 && found.len() <= FILE_BYTES_MAX
}

/// The stamps of the directory and of each path that may be copied.
fn stamps(host: &Path) -> Vec<FileStamp> {
    let names = fs::read_dir(host).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let versioned = names.filter(|name| {
        let name = name.to_string_lossy();
        VERSIONED.iter().any(|beginning| name.starts_with(beginning))
    });
    let mut parts: Vec<PathBuf> =
        PARTS.iter().map(PathBuf::from).chain(versioned.map(PathBuf::from)).collect();
    parts.sort();
    let look = |part: PathBuf| {
        let found = fs::metadata(host.join(&part)).ok();
        (part, found.map(|found| (found.dev(), found.ino(), found.size(), found.mtime(), found.mtime_nsec())))
    };
    std::iter::once(PathBuf::new()).chain(parts).map(look).collect()
}

/// Makes `to` a copy of exactly these parts of `from`.
fn copy(from: &Path, to: &Path, parts: &[PathBuf]) -> io::Result<()> {
    make_dir(to)?;
    let mut left = ENTRIES_MAX;
    let mut kept: BTreeSet<PathBuf> = BTreeSet::new();
    for part in parts {
        let above: Vec<&Path> =
            part.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()).collect();
        if !from.join(part).exists() {
            continue;
        }
        for above in above.into_iter().rev() {
            make_dir(&to.join(above))?;
            kept.insert(above.to_owned());
        }
        let mirror = Mirror { host: from, links_only: part == Path::new(LINKS_ONLY) };
        if leads_to_source(&from.join(part), from) {
            mirror.put(&from.join(part), &to.join(part), DEPTH_MAX, &mut left)?;
        } else {
            remove(&to.join(part))?;
        }
        kept.insert(part.clone());
    }
    // Entries below a part were compared with that part.
    let is_kept = |below: &Path| kept.contains(below) || parts.iter().any(|part| below.starts_with(part));
    remove_others(to, Path::new(""), &is_kept)
}

fn remove_others(top: &Path, below: &Path, is_kept: &dyn Fn(&Path) -> bool) -> io::Result<()> {
    for entry in fs::read_dir(top.join(below))?.flatten() {
        let path = below.join(entry.file_name());
        if !is_kept(&path) {
            remove(&top.join(&path))?;
        } else if PARTS.iter().any(|part| Path::new(part).starts_with(&path) && Path::new(part) != path) {
            remove_others(top, &path, is_kept)?;
        }
    }
    Ok(())
}

/// The copy of one part.
struct Mirror<'h> {
    host: &'h Path,
    /// Copy links unchanged, and nothing else.
    links_only: bool,
}

impl Mirror<'_> {
    /// Copies a file, a link or a directory, unless the copy is current. Skips what may not be copied.
    fn put(&self, from: &Path, to: &Path, depth: usize, left: &mut usize) -> io::Result<()> {
        let Some(rest) = left.checked_sub(1) else { return Ok(()) };
        *left = rest;
        let Ok(found) = fs::symlink_metadata(from) else { return remove(to) };
        if found.is_symlink() {
            let target = fs::read_link(from)?;
            if self.links_only || is_beside(&target) {
                return put_link(&target, to);
            }
            if !leads_to_source(from, self.host) {
                return remove(to);
            }
        }
        // The target of a link to another place is copied instead of the link.
        match fs::metadata(from) {
            Ok(found) if found.is_dir() && depth > 0 => self.put_dir(from, to, depth, left),
            Ok(found) if found.is_file() && !self.links_only => put_file(from, to, &found),
            Ok(_) | Err(_) => remove(to),
        }
    }

    fn put_dir(&self, from: &Path, to: &Path, depth: usize, left: &mut usize) -> io::Result<()> {
        let Ok(entries) = fs::read_dir(from) else { return remove(to) };
        make_dir(to)?;
        let mut names = BTreeSet::new();
        for entry in entries.flatten() {
            let name = entry.file_name();
            self.put(&from.join(&name), &to.join(&name), depth - 1, left)?;
            names.insert(name);
        }
        for entry in fs::read_dir(to)?.flatten() {
            if !names.contains(&entry.file_name()) {
                remove(&entry.path())?;
            }
        }
        Ok(())
    }
}

/// Whether a link leads to a name in its own directory.
fn is_beside(target: &Path) -> bool {
    let mut parts = target.components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None))
}

fn put_link(target: &Path, to: &Path) -> io::Result<()> {
    if fs::read_link(to).is_ok_and(|known| known == target) {
        return Ok(());
    }
    remove(to)?;
    std::os::unix::fs::symlink(target, to)
}

/// Replaces a file atomically: running programs read the copy.
fn put_file(from: &Path, to: &Path, found: &Metadata) -> io::Result<()> {
    if !is_world_readable(found) {
        return remove(to);
    }
    let is_same = |known: Metadata| {
        known.is_file()
            && (known.len(), known.mtime(), known.mtime_nsec())
                == (found.len(), found.mtime(), found.mtime_nsec())
    };
    if fs::symlink_metadata(to).is_ok_and(is_same) {
        return Ok(());
    }
    let Ok(bytes) = fs::read(from) else { return remove(to) };
    let mut name = to.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = to.with_file_name(name);
    remove(&new)?;
    fs::write(&new, bytes)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o644))?;
    File::options().write(true).open(&new)?.set_modified(found.modified()?)?;
    if fs::symlink_metadata(to).is_ok_and(|known| known.is_dir()) {
        remove(to)?;
    }
    fs::rename(&new, to)
}

fn make_dir(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(_) => fs::remove_file(path)?,
        Err(_) => {}
    }
    fs::DirBuilder::new().mode(0o755).create(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

fn remove(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct HostEtcWorld {
        _dir: tempfile::TempDir,
        host: PathBuf,
        copy: PathBuf,
    }

    impl HostEtcWorld {
        fn new() -> HostEtcWorld {
            let dir = tempfile::tempdir().unwrap();
            let (host, copy) = (dir.path().join("etc"), dir.path().join("copy"));
            for part in ["alternatives", "ssl/certs", "ssl/private", "java-17/conf", "perl"] {
                fs::create_dir_all(host.join(part)).unwrap();
            }
            let put = |path: &str, mode: u32| {
                fs::write(host.join(path), path).unwrap();
                fs::set_permissions(host.join(path), fs::Permissions::from_mode(mode)).unwrap();
            };
            for path in
                ["ld.so.cache", "passwd", "gitconfig", "ssl/certs/bundle.crt", "java-17/conf/security"]
            {
                put(path, 0o644);
            }
            for path in ["shadow", "ssl/private/key", "perl/secret"] {
                put(path, 0o600);
            }
            std::os::unix::fs::symlink("/usr/bin/vim", host.join("alternatives/vi")).unwrap();
            std::os::unix::fs::symlink("bundle.crt", host.join("ssl/certs/hash.0")).unwrap();
            fs::create_dir(host.join("zones")).unwrap();
            fs::write(host.join("zones/UTC"), "UTC").unwrap();
            std::os::unix::fs::symlink("zones/UTC", host.join("localtime")).unwrap();
            drop(std::os::unix::net::UnixListener::bind(host.join("perl/socket")).unwrap());
            HostEtcWorld { _dir: dir, host, copy }
        }

        fn copied(&self) -> Vec<String> {
            let parts: Vec<PathBuf> = stamps(&self.host).into_iter().skip(1).map(|(part, _)| part).collect();
            copy(&self.host, &self.copy, &parts).unwrap();
            let mut found = Vec::new();
            let mut open = vec![self.copy.clone()];
            while let Some(dir) = open.pop() {
                for entry in fs::read_dir(dir).unwrap().flatten() {
                    if entry.file_type().unwrap().is_dir() {
                        open.push(entry.path());
                    } else {
                        found.push(entry.path().strip_prefix(&self.copy).unwrap().display().to_string());
                    }
                }
            }
            found.sort();
            found
        }
    }

    #[test]
    fn world_readable_files_are_copied_and_neither_secrets_nor_sockets() {
        let world = HostEtcWorld::new();
        let expected = [
            "alternatives/vi",
            "java-17/conf/security",
            "ld.so.cache",
            "localtime",
            "ssl/certs/bundle.crt",
            "ssl/certs/hash.0",
        ];
        assert_eq!(world.copied(), expected);
        assert_eq!(fs::read_link(world.copy.join("alternatives/vi")).unwrap(), Path::new("/usr/bin/vim"));
        assert_eq!(fs::read_link(world.copy.join("ssl/certs/hash.0")).unwrap(), Path::new("bundle.crt"));
        assert_eq!(fs::read_to_string(world.copy.join("localtime")).unwrap(), "UTC");
    }

    #[test]
    fn a_link_to_another_directory_copies_nothing() {
        let world = HostEtcWorld::new();
        let private = world.host.parent().unwrap().join("private");
        fs::create_dir(&private).unwrap();
        // The file is world-readable, and its directory is not.
        fs::write(private.join("key"), "SECRET").unwrap();
        fs::set_permissions(&private, fs::Permissions::from_mode(0o700)).unwrap();
        let before = world.copied();
        std::os::unix::fs::symlink(private.join("key"), world.host.join("services")).unwrap();
        std::os::unix::fs::symlink("../../../private/key", world.host.join("ssl/certs/key.pem")).unwrap();
        std::os::unix::fs::symlink(&private, world.host.join("vim")).unwrap();
        std::os::unix::fs::symlink(&private, world.host.join("perl/private")).unwrap();
        fs::remove_file(world.host.join("ld.so.cache")).unwrap();
        std::os::unix::fs::symlink(private.join("key"), world.host.join("ld.so.cache")).unwrap();
        let expected: Vec<String> = before.into_iter().filter(|name| name != "ld.so.cache").collect();
        assert_eq!(world.copied(), expected);
    }

    #[test]
    fn a_copy_follows_the_host_and_is_completed_after_a_crash() {
        let world = HostEtcWorld::new();
        world.copied();
        fs::write(world.host.join("ssl/certs/new.crt"), "new").unwrap();
        fs::remove_dir_all(world.host.join("java-17")).unwrap();
        fs::remove_file(world.host.join("alternatives/vi")).unwrap();
        std::os::unix::fs::symlink("/usr/bin/nano", world.host.join("alternatives/vi")).unwrap();
        // A daemon that was killed during the copy leaves this file.
        fs::write(world.copy.join("ld.so.cache.new"), "half").unwrap();
        fs::remove_file(world.copy.join("ssl/certs/bundle.crt")).unwrap();
        let found = world.copied();
        assert_eq!(
            found,
            [
                "alternatives/vi",
                "ld.so.cache",
                "localtime",
                "ssl/certs/bundle.crt",
                "ssl/certs/hash.0",
                "ssl/certs/new.crt"
            ]
        );
        assert_eq!(fs::read_link(world.copy.join("alternatives/vi")).unwrap(), Path::new("/usr/bin/nano"));
    }
}
