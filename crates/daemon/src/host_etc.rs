//! A copy of those parts of the host's `/etc` that programs need, for the `/etc` of agents.
//!
//! It is a copy so that no socket, no FIFO and no secret of the host's comes with it: only links and files that
//! everybody may read. It is one directory for all agents, updated when the host's changes.
//!
//! Owns: `host-etc/` in the state directory. Everything there is derived and may be deleted while no agent runs.

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};

const HOST: &str = "/etc";
/// What is copied, relative to `/etc`. Settings and secrets of the host's people are not among it.
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
/// Beginnings of names whose ends are versions.
const VERSIONED: [&str; 2] = ["java-", "python3"];
/// Links of these lead to programs, which are not to be copied.
const LINKS_ONLY: &str = "alternatives";
/// Where links of the host's `/etc` may lead: to what packages install for everybody, and to what makes the files of a
/// resolver. What lies elsewhere is not copied.
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
/// More than this of a file, of directories within each other and of entries is not copied.
const FILE_BYTES_MAX: u64 = 4 << 20;
const DEPTH_MAX: usize = 8;
const ENTRIES_MAX: usize = 20_000;

/// The copy of one state directory.
#[derive(Debug)]
pub(crate) struct HostEtc {
    dir: PathBuf,
    /// How the host's parts looked when they were copied.
    seen: Mutex<Option<Vec<Look>>>,
}

/// What changes when a part does: device, inode, size and time of the last change.
type Look = (PathBuf, Option<(u64, u64, u64, i64, i64)>);

impl HostEtc {
    pub(crate) fn new(state_dir: &Path) -> HostEtc {
        HostEtc { dir: state_dir.join("host-etc"), seen: Mutex::default() }
    }

    /// Where the copy is.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Brings the copy up to date.
    pub(crate) fn refresh(&self) -> io::Result<()> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let looks = looks(Path::new(HOST));
        if seen.as_ref() != Some(&looks) {
            let parts: Vec<PathBuf> = looks.iter().skip(1).map(|(part, _)| part.clone()).collect();
            copy(Path::new(HOST), &self.dir, &parts)?;
            *seen = Some(looks);
        }
        Ok(())
    }
}

/// The text of one file of the host's `/etc`, as far as it may be copied; empty otherwise.
pub(crate) fn text_of(name: &str) -> String {
    let path = Path::new(HOST).join(name);
    let may_read = |path: &Path| {
        leads_to_source(path, Path::new(HOST))
            && fs::metadata(path).is_ok_and(|found| found.is_file() && is_for_everybody(&found))
    };
    if may_read(&path) { fs::read_to_string(&path).unwrap_or_default() } else { String::new() }
}

/// Whether a path, without its links, lies in `host` or where links may lead.
fn leads_to_source(path: &Path, host: &Path) -> bool {
    let (real, host) = (path.canonicalize(), host.canonicalize());
    real.is_ok_and(|real| {
        host.is_ok_and(|host| real.starts_with(host)) || SOURCES.iter().any(|source| real.starts_with(source))
    })
}

fn is_for_everybody(found: &Metadata) -> bool {
    found.mode() & 0o004 != 0 && found.len() <= FILE_BYTES_MAX
}

/// The directory itself, then each part that there may be.
fn looks(host: &Path) -> Vec<Look> {
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

/// Makes `to` a copy of these parts of `from`, and of nothing else.
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
    // What is beneath a part was looked at there.
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
    /// Whether links are copied as they are, and nothing else is.
    links_only: bool,
}

impl Mirror<'_> {
    /// Copies a file, a link or a directory, as far as it is not the same already. What may not be copied is left out.
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
        // What a link leads to elsewhere is copied in its place.
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

/// Whether a link leads to a name beside it.
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

/// Puts a file in its place whole: programs that run read the copy.
fn put_file(from: &Path, to: &Path, found: &Metadata) -> io::Result<()> {
    if !is_for_everybody(found) {
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
            let parts: Vec<PathBuf> = looks(&self.host).into_iter().skip(1).map(|(part, _)| part).collect();
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
    fn what_programs_need_is_copied_and_neither_secrets_nor_sockets() {
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
    fn no_link_brings_anything_from_elsewhere() {
        let world = HostEtcWorld::new();
        let private = world.host.parent().unwrap().join("private");
        fs::create_dir(&private).unwrap();
        // Everybody could read it, if everybody could get there.
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
    fn a_copy_follows_the_host_and_is_made_whole_after_a_crash() {
        let world = HostEtcWorld::new();
        world.copied();
        fs::write(world.host.join("ssl/certs/new.crt"), "new").unwrap();
        fs::remove_dir_all(world.host.join("java-17")).unwrap();
        fs::remove_file(world.host.join("alternatives/vi")).unwrap();
        std::os::unix::fs::symlink("/usr/bin/nano", world.host.join("alternatives/vi")).unwrap();
        // As a daemon leaves it that was killed while it copied.
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
