//! The supplementary groups of an ordinary user, which open files and sockets as long as they are there.
//!
//! A user may drop them in a user namespace only if another group than his own is mapped there, which the program
//! `newgidmap` does for users with an entry in `/etc/subgid`.
//!
//! Owns: mapping groups, and the layer `groups`.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use crate::layers::Layers;
use crate::sys;

const NEWGIDMAP: &str = "/usr/bin/newgidmap";
const SUBGID: &str = "/etc/subgid";
const PASSWD: &str = "/etc/passwd";

/// A process outside of the namespace to come that will map its groups.
pub(crate) struct GroupMapper {
    pid: i32,
    /// Says that the namespace is there; closed without a word, it is not.
    begin: File,
}

impl GroupMapper {
    /// None: there are no groups to drop, or no way to.
    pub(crate) fn begin(uid: u32, gid: u32) -> Option<GroupMapper> {
        if others(gid).ok()?.is_empty() || !Path::new(NEWGIDMAP).exists() {
            return None;
        }
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let second = subordinate(&read(SUBGID), &read(PASSWD), uid)?;
        let target = std::process::id().to_string();
        let (gid, second) = (gid.to_string(), second.to_string());
        let words = ["newgidmap", &target, &gid, &gid, "1", &second, &second, "1"];
        let words = words.map(|word| CString::new(word).unwrap_or_default());
        let program = CString::new(NEWGIDMAP).ok()?;
        let (wait, begin) = sys::pipe().ok()?;
        match sys::fork().ok()? {
            0 => {
                drop(begin);
                map_after(&wait, &program, &words)
            }
            pid => Some(GroupMapper { pid, begin: begin.into() }),
        }
    }

    /// Has the groups mapped, now that this process is in its namespace. Says whether they are.
    fn finish(mut self) -> bool {
        let begun = self.begin.write_all(b"1").is_ok();
        drop(self.begin);
        let mut status = 0;
        // SAFETY: `status` outlives the call; the child is ours.
        let waited = sys::check(unsafe { libc::waitpid(self.pid, &mut status, 0) }).is_ok();
        begun && waited && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }
}

/// Runs in the child.
fn map_after(wait: &OwnedFd, program: &CString, words: &[CString]) -> ! {
    let mut word = [0];
    let argv: Vec<*const libc::c_char> =
        words.iter().map(|word| word.as_ptr()).chain([std::ptr::null()]).collect();
    let env = [std::ptr::null()];
    if matches!(sys::read(wait.as_fd(), &mut word), Ok(1)) {
        // SAFETY: both lists end with a null pointer and point to C strings that outlive the call.
        unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), env.as_ptr()) };
    }
    // SAFETY: ends the child at once.
    unsafe { libc::_exit(127) }
}

/// Maps the user's own group into the namespace that this process just made, and drops all others where that is
/// possible.
pub(crate) fn map(mapper: Option<GroupMapper>, gid: u32, layers: &mut Layers) -> io::Result<()> {
    let has_none = others(gid)?.is_empty();
    if mapper.is_some_and(GroupMapper::finish) {
        // SAFETY: an empty list of groups is a null pointer and no length.
        let dropped = sys::check(unsafe { libc::setgroups(0, std::ptr::null()) });
        layers.note("groups", dropped.map(drop));
        return Ok(());
    }
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    if has_none {
        layers.holds("groups");
    } else {
        layers.missing("groups", kept_groups_text());
    }
    Ok(())
}

/// Notes that the groups stay, for a keeper without namespaces.
pub(crate) fn note_kept(layers: &mut Layers) {
    let gid = rustix::process::getegid().as_raw();
    match others(gid) {
        // Execs of a keeper that runs as root become users without groups.
        _ if sys::is_root() => layers.holds("groups"),
        Ok(groups) if groups.is_empty() => layers.holds("groups"),
        Ok(_) => layers.missing("groups", "the user's supplementary groups stay: needs a user namespace"),
        Err(error) => layers.missing("groups", error.to_string()),
    }
}

fn kept_groups_text() -> String {
    format!(
        "the user's supplementary groups stay: dropping them needs {NEWGIDMAP} and an entry for the user in {SUBGID}"
    )
}

/// The groups of this process beside its own.
fn others(own: u32) -> io::Result<Vec<u32>> {
    // SAFETY: with no room announced, the kernel only counts.
    let count = sys::check(unsafe { libc::getgroups(0, std::ptr::null_mut()) })?;
    let mut groups = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: the list is as long as is announced and outlives the call.
    let count = sys::check(unsafe { libc::getgroups(count, groups.as_mut_ptr()) })?;
    groups.truncate(usize::try_from(count).unwrap_or(0));
    groups.retain(|group| *group != own);
    Ok(groups)
}

/// The first group that a user may map besides his own, by the texts of `/etc/subgid` and `/etc/passwd`.
fn subordinate(subgid: &str, passwd: &str, uid: u32) -> Option<u32> {
    let uid = uid.to_string();
    let name = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid).then_some(name)
    });
    subgid.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (owner, first, count) = (fields.next()?, fields.next()?, fields.next()?);
        let is_his = owner == uid || Some(owner) == name;
        let has_some = count.trim().parse::<u32>().is_ok_and(|count| count > 0);
        first.parse().ok().filter(|_| is_his && has_some)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_range_is_found_by_name_and_by_number() {
        let passwd = "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\nbroken\n";
        let subgid = "bob:100000:65536\nbroken\nann:165536:65536\n1001:300000:1\nempty:5:0\n";
        assert_eq!(subordinate(subgid, passwd, 1000), Some(165_536));
        assert_eq!(subordinate(subgid, passwd, 1001), Some(300_000));
        assert_eq!(subordinate(subgid, passwd, 0), None);
        assert_eq!(subordinate("", passwd, 1000), None);
    }
}
