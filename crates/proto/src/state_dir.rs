//! The state directory, checked before anything in it is trusted.
//!
//! Owns: whose the directory is, and who else could change it or what lies in it. Never: making it.
//!
//! The directory has the operator's token, the daemon's database and the programs of every sandbox. A user who can write it,
//! or swap one of the directories above it, runs programs as the user of the daemon.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

/// More links than this on one path are a loop, as for the kernel.
const LINKS_MAX: u32 = 40;
const STICKY: u32 = 0o1000;
const OTHERS_WRITE: u32 = 0o002;
const GROUP_WRITES: u32 = 0o020;
/// Directories of the state directory whose entries are checked as well: what is executed, and what is bound into sandboxes.
const CHECKED_BELOW: [&str; 2] = ["bin", "registry"];

/// Why a state directory is not trusted.
#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    #[error("the state directory {} belongs to user {owner}, not to you (user {caller})", dir.display())]
    NotYours { dir: PathBuf, owner: u32, caller: u32 },
    #[error("the state directory {} is not safe: {} belongs to user {owner}", dir.display(), path.display())]
    OtherOwner { dir: PathBuf, path: PathBuf, owner: u32 },
    #[error("the state directory {} is not safe: {} on the way to it belongs to user {owner}", dir.display(), path.display())]
    OtherOwnerAbove { dir: PathBuf, path: PathBuf, owner: u32 },
    #[error("the state directory {} is not safe: other users can write {}", dir.display(), path.display())]
    Writable { dir: PathBuf, path: PathBuf },
    #[error("the state directory {} is not safe: {} leads through too many links", dir.display(), path.display())]
    Links { dir: PathBuf, path: PathBuf },
    #[error("could not check {}", path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
}

impl StateDirError {
    /// Stable, documented, never reused.
    pub fn code(&self) -> &'static str {
        match self {
            StateDirError::NotYours { .. }
            | StateDirError::OtherOwner { .. }
            | StateDirError::OtherOwnerAbove { .. } => "state_dir.other_owner",
            StateDirError::Writable { .. } => "state_dir.writable",
            StateDirError::Links { .. } | StateDirError::Unreadable { .. } => "state_dir.unreadable",
        }
    }

    /// The same of a link in the directory, which can be removed.
    fn below(self) -> StateDirError {
        match self {
            StateDirError::OtherOwnerAbove { dir, path, owner } => {
                StateDirError::OtherOwner { dir, path, owner }
            }
            other @ (StateDirError::NotYours { .. }
            | StateDirError::OtherOwner { .. }
            | StateDirError::Writable { .. }
            | StateDirError::Links { .. }
            | StateDirError::Unreadable { .. }) => other,
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            StateDirError::NotYours { owner, .. } | StateDirError::OtherOwnerAbove { owner, .. } => {
                format!("run this as user {owner}, or set LODGE_HOME to a directory of your own")
            }
            StateDirError::OtherOwner { path, .. } => format!(
                "check what {} is, then remove it or make it yours with `chown`; or set LODGE_HOME to another directory",
                path.display()
            ),
            StateDirError::Writable { path, .. } => format!("run `chmod go-w {}`", path.display()),
            StateDirError::Links { .. } => "set LODGE_HOME to the real path".to_owned(),
            StateDirError::Unreadable { .. } => {
                "check that the path exists and that you may read it".to_owned()
            }
        }
    }
}

/// A state directory that belongs to the caller, and that no other user can change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateDir {
    /// Its real path.
    Present(PathBuf),
    /// The directory does not exist, and no other user can create it.
    Absent,
}

/// Checks a state directory: itself, every directory and link on the way to it, and what lies in it.
///
/// Directories above it belong to the caller or to root, and others can write them only if they are sticky, such as
/// `/tmp`. A checked path stays valid: only the caller and root can change any part of it.
pub fn check_state_dir(dir: &Path) -> Result<StateDir, StateDirError> {
    let caller = rustix::process::geteuid().as_raw();
    check_as(dir, caller, &Accounts::here)
}

/// Refuses a program that another user could have put there or could change. The caller, root and `also` may own it.
pub fn check_program(file: &std::fs::File, also: Option<u32>) -> Result<(), ProgramError> {
    let caller = rustix::process::geteuid().as_raw();
    let meta = file.metadata().map_err(|cause| ProgramError::Unreadable { cause })?;
    if !meta.is_file() {
        return Err(ProgramError::NoFile);
    }
    if ![Some(caller), Some(0), also].contains(&Some(meta.uid())) {
        return Err(ProgramError::OtherOwner { owner: meta.uid() });
    }
    let owners = Owners { caller, top: 0, accounts: &Accounts::here };
    if owners.others_write(&meta) { Err(ProgramError::Writable) } else { Ok(()) }
}

/// Why a program is not run.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    #[error("it is not a file")]
    NoFile,
    #[error("it belongs to user {owner}")]
    OtherOwner { owner: u32 },
    #[error("other users can write it")]
    Writable,
    #[error("it cannot be read: {cause}")]
    Unreadable { cause: io::Error },
}

fn check_as(dir: &Path, caller: u32, accounts: &dyn Fn() -> Accounts) -> Result<StateDir, StateDirError> {
    let dir = std::path::absolute(dir)
        .map_err(|cause| StateDirError::Unreadable { path: dir.to_owned(), cause })?;
    let top = look(Path::new("/"))?.map_or(0, |meta| meta.uid());
    let check = Check { dir: &dir, owners: Owners { caller, top, accounts } };
    let Some((real, meta)) = check.resolve(&dir)? else { return Ok(StateDir::Absent) };
    // The code that creates it reports what is there instead.
    if !meta.is_dir() {
        return Ok(StateDir::Absent);
    }
    if meta.uid() != caller {
        return Err(StateDirError::NotYours { dir, owner: meta.uid(), caller });
    }
    // Stricter than above it: neither sticky nor a group of one's own makes it a place for secrets.
    if meta.mode() & (OTHERS_WRITE | GROUP_WRITES) != 0 {
        return Err(StateDirError::Writable { dir, path: real });
    }
    check.entries(&real)?;
    for below in CHECKED_BELOW {
        let below = real.join(below);
        if look(&below)?.is_some_and(|meta| meta.is_dir()) {
            check.entries(&below)?;
        }
    }
    Ok(StateDir::Present(real))
}

struct Check<'a> {
    dir: &'a Path,
    owners: Owners<'a>,
}

impl Check<'_> {
    /// Follows a path part by part from `/`, looking at each before it is relied on. `None`: it ends before its last part.
    ///
    /// A directory that only the caller and root can write does not change, so paths are as safe as descriptors here.
    fn resolve(&self, path: &Path) -> Result<Option<(PathBuf, Metadata)>, StateDirError> {
        let mut left: VecDeque<OsString> = parts(path).collect();
        let mut at = PathBuf::from("/");
        let (mut meta, mut links) = (self.top()?, 0);
        while let Some(part) = left.pop_front() {
            if self.owners.others_write(&meta) && meta.mode() & STICKY == 0 {
                return Err(StateDirError::Writable { dir: self.dir.to_owned(), path: at });
            }
            if part == ".." {
                at.pop();
                meta = look(&at)?.map_or_else(|| self.top(), Ok)?;
                continue;
            }
            let next = at.join(&part);
            let Some(found) = look(&next)? else { return Ok(None) };
            self.owner_above(&next, &found)?;
            if !found.is_symlink() {
                (at, meta) = (next, found);
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(StateDirError::Links { dir: self.dir.to_owned(), path: path.to_owned() });
            }
            let target = std::fs::read_link(&next)
                .map_err(|cause| StateDirError::Unreadable { path: next.clone(), cause })?;
            if target.is_absolute() {
                (at, meta) = (PathBuf::from("/"), self.top()?);
            }
            for part in parts(&target).rev() {
                left.push_front(part);
            }
        }
        Ok(Some((at, meta)))
    }

    fn top(&self) -> Result<Metadata, StateDirError> {
        let path = PathBuf::from("/");
        std::fs::symlink_metadata(&path).map_err(|cause| StateDirError::Unreadable { path, cause })
    }

    fn owner(&self, path: &Path, meta: &Metadata) -> Result<(), StateDirError> {
        if self.owners.trusts(meta.uid()) {
            return Ok(());
        }
        let (dir, path, owner) = (self.dir.to_owned(), path.to_owned(), meta.uid());
        Err(StateDirError::OtherOwner { dir, path, owner })
    }

    /// A part of the path above. Another user's home must not be removed or given away.
    fn owner_above(&self, path: &Path, meta: &Metadata) -> Result<(), StateDirError> {
        if self.owners.trusts(meta.uid()) {
            return Ok(());
        }
        let (dir, path, owner) = (self.dir.to_owned(), path.to_owned(), meta.uid());
        if dir == path {
            return Err(StateDirError::NotYours { dir, owner, caller: self.owners.caller });
        }
        Err(StateDirError::OtherOwnerAbove { dir, path, owner })
    }

    /// Each entry of a directory that was checked.
    fn entries(&self, dir: &Path) -> Result<(), StateDirError> {
        let unreadable = |cause| StateDirError::Unreadable { path: dir.to_owned(), cause };
        for entry in std::fs::read_dir(dir).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            // It may be gone: a daemon that runs replaces files.
            let Some(mut found) = look(&path)? else { continue };
            self.owner(&path, &found)?;
            if found.is_symlink() {
                let Some((_, target)) = self.resolve(&path).map_err(StateDirError::below)? else { continue };
                found = target;
            }
            // Who may connect to a socket is the daemon's to say.
            if !found.file_type().is_socket() && self.owners.others_write(&found) {
                return Err(StateDirError::Writable { dir: self.dir.to_owned(), path });
            }
        }
        Ok(())
    }
}

/// Whose files are trusted.
struct Owners<'a> {
    caller: u32,
    /// The owner of `/`. In a user namespace that is what an unmapped root looks like.
    top: u32,
    accounts: &'a dyn Fn() -> Accounts,
}

impl Owners<'_> {
    fn trusts(&self, uid: u32) -> bool {
        uid == 0 || uid == self.caller || uid == self.top
    }

    /// Whether an untrusted user can write it. A group whose only member is the caller counts as the caller.
    fn others_write(&self, meta: &Metadata) -> bool {
        let mode = meta.mode();
        mode & OTHERS_WRITE != 0
            || (mode & GROUP_WRITES != 0 && !(self.accounts)().is_private(meta.gid(), self.caller))
    }
}

/// The users and groups of this host, as its files have them.
struct Accounts {
    passwd: String,
    group: String,
}

impl Accounts {
    fn here() -> Accounts {
        // Without these files no group is known to be private.
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        Accounts { passwd: read("/etc/passwd"), group: read("/etc/group") }
    }

    /// Whether it is the primary group of that user only.
    fn is_private(&self, gid: u32, uid: u32) -> bool {
        let mut users = self.passwd.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let (name, _, uid, gid) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
            Some((name, uid.parse::<u32>().ok()?, gid.parse::<u32>().ok()?))
        });
        let mut groups = self.group.lines().filter_map(|line| {
            let mut fields = line.split(':').skip(2);
            Some((fields.next()?.parse::<u32>().ok()?, fields.next().unwrap_or_default()))
        });
        let Some((_, members)) = groups.find(|(found, _)| *found == gid) else { return false };
        let own: Vec<_> = users.by_ref().filter(|(_, _, primary)| *primary == gid).collect();
        let [(name, only, _)] = own.as_slice() else { return false };
        *only == uid && members.split(',').all(|member| member.trim().is_empty() || member.trim() == *name)
    }
}

fn look(path: &Path) -> Result<Option<Metadata>, StateDirError> {
    match std::fs::symlink_metadata(path) {
        Ok(meta) => Ok(Some(meta)),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(StateDirError::Unreadable { path: path.to_owned(), cause }),
    }
}

/// The parts of a path without its beginning and without `.`.
fn parts(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    /// A user that the tests do not run as.
    const STRANGER: u32 = 54_321;

    fn caller() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn is_root() -> bool {
        caller() == 0
    }

    fn nobody() -> Accounts {
        Accounts { passwd: String::new(), group: String::new() }
    }

    fn check(dir: &Path) -> Result<StateDir, StateDirError> {
        check_as(dir, caller(), &nobody)
    }

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    /// A directory `above/home`, both private.
    fn place() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().canonicalize().unwrap().join("above/home");
        fs::create_dir_all(&home).unwrap();
        chmod(home.parent().unwrap(), 0o755);
        chmod(&home, 0o700);
        (dir, home)
    }

    #[test]
    fn a_private_directory_is_trusted_and_one_that_is_not_there_can_be_made() {
        let (_dir, home) = place();
        fs::write(home.join("daemon.db"), "").unwrap();
        fs::create_dir(home.join("bin")).unwrap();
        assert_eq!(check(&home).unwrap(), StateDir::Present(home.clone()));
        assert_eq!(check(&home.join("a/b")).unwrap(), StateDir::Absent);
        let link = home.with_file_name("link");
        symlink("../above/home", &link).unwrap();
        assert_eq!(check(&link.join("./")).unwrap(), StateDir::Present(home));
    }

    #[test]
    fn a_directory_that_others_can_write_is_refused_wherever_on_the_way_it_is() {
        let (_dir, home) = place();
        for mode in [0o777, 0o770, 0o702, 0o1777] {
            chmod(&home, mode);
            assert_eq!(check(&home).unwrap_err().code(), "state_dir.writable", "{mode:o}");
        }
        chmod(&home, 0o700);
        let above = home.parent().unwrap();
        for (mode, refused) in [(0o777, true), (0o775, true), (0o1777, false), (0o755, false)] {
            chmod(above, mode);
            assert_eq!(check(&home).is_err(), refused, "{mode:o}");
            // Also before it exists: another user could create it.
            assert_eq!(check(&above.join("later")).is_err(), refused, "{mode:o}");
        }
        for name in ["lodged.yaml", "bin"] {
            let path = home.join(name);
            if name == "bin" {
                fs::create_dir(&path).unwrap()
            } else {
                fs::write(&path, "").unwrap()
            }
            chmod(&path, 0o722);
            let error = check(&home).unwrap_err();
            assert!(error.hint().contains(name) && error.code() == "state_dir.writable", "{error}");
            chmod(&path, 0o700);
            check(&home).unwrap();
        }
    }

    #[test]
    fn a_link_is_followed_only_through_what_nobody_else_can_change() {
        let (_dir, home) = place();
        let (above, open) = (home.parent().unwrap(), home.with_file_name("open"));
        fs::create_dir(&open).unwrap();
        symlink(&home, open.join("home")).unwrap();
        symlink(open.join("home"), above.join("way")).unwrap();
        check(&above.join("way")).unwrap();
        chmod(&open, 0o777);
        assert_eq!(check(&above.join("way")).unwrap_err().code(), "state_dir.writable");
        // A file of the directory that is somewhere else.
        symlink(open.join("providers.yaml"), home.join("providers.yaml")).unwrap();
        assert_eq!(check(&home).unwrap_err().code(), "state_dir.writable");
        chmod(&open, 0o755);
        check(&home).unwrap();
        symlink("loop", above.join("loop")).unwrap();
        assert_eq!(check(&above.join("loop")).unwrap_err().code(), "state_dir.unreadable");
    }

    #[test]
    fn what_belongs_to_another_user_is_refused() {
        let (_dir, home) = place();
        // For another user, it also has the wrong owner.
        if !is_root() {
            let refused = check_as(&home, STRANGER, &nobody).unwrap_err();
            assert_eq!(refused.code(), "state_dir.other_owner", "{refused}");
            return;
        }
        for name in ["daemon.db", "credentials.json", "bin", "bin/keeper-1", "registry"] {
            let path = home.join(name);
            if name.contains('.') || name.contains('/') {
                fs::write(&path, "").unwrap();
            } else {
                fs::create_dir(&path).unwrap();
            }
            chown(&path, Some(STRANGER), None).unwrap();
            let refused = check(&home).unwrap_err();
            assert!(
                matches!(&refused, StateDirError::OtherOwner { path: found, .. } if *found == path),
                "{refused}"
            );
            chown(&path, Some(0), None).unwrap();
            check(&home).unwrap();
        }
        let above = home.parent().unwrap();
        chown(above, Some(STRANGER), None).unwrap();
        let refused = check(&home).unwrap_err();
        assert!(
            matches!(&refused, StateDirError::OtherOwnerAbove { path, .. } if path == above),
            "{refused}"
        );
        assert_eq!(
            refused.hint(),
            format!("run this as user {STRANGER}, or set LODGE_HOME to a directory of your own")
        );
        chown(above, Some(0), None).unwrap();
        chown(&home, Some(STRANGER), None).unwrap();
        let refused = check(&home).unwrap_err();
        assert!(matches!(refused, StateDirError::NotYours { owner: STRANGER, .. }), "{refused}");
        // Its owner may use it, and only root can change root's directory.
        check_as(&home, STRANGER, &nobody).unwrap();
        chown(&home, Some(0), None).unwrap();
        let refused = check_as(&home, STRANGER, &nobody).unwrap_err();
        assert!(matches!(refused, StateDirError::NotYours { owner: 0, .. }), "{refused}");
    }

    #[test]
    fn a_group_with_nobody_else_in_it_is_private() {
        let accounts = |passwd: &str, group: &str| Accounts { passwd: passwd.into(), group: group.into() };
        let passwd = "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n";
        let private = |passwd: &str, group: &str| accounts(passwd, group).is_private(1000, 1000);
        assert!(private(passwd, "root:x:0:\nann:x:1000:\n"));
        assert!(private(passwd, "ann:x:1000:ann"));
        assert!(!private(passwd, "ann:x:1000:ann,bob"));
        assert!(!private(passwd, "root:x:0:\n"));
        assert!(!private(&format!("{passwd}bob:x:1001:1000::/:/bin/sh\n"), "ann:x:1000:"));
        assert!(!accounts(passwd, "ann:x:1000:").is_private(1000, 1001));
    }

    #[test]
    fn a_directory_above_may_be_written_by_the_callers_own_group() {
        let (_dir, home) = place();
        let above = home.parent().unwrap();
        chmod(above, 0o775);
        let gid = above.metadata().unwrap().gid();
        let accounts = || Accounts {
            passwd: format!("me:x:{}:{gid}::/:/bin/sh\n", caller()),
            group: format!("me:x:{gid}:\n"),
        };
        check_as(&home, caller(), &accounts).unwrap();
        assert!(check(&home).is_err());
    }
}
