//! Whose rights an agent has in a mount, decided when the mount is recorded.
//!
//! The agents of an ordinary user are that user. Those of root are users of their own: without more they would have the
//! rights of others in a directory, so its owner is mapped to the agent's user.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use lodge_core::record::MountOwner;
use lodge_exec::{BindOwner, Executor, OwnerTrial};
use lodge_proto::{ErrorBody, Mount};
use tokio::runtime::Handle;

use crate::chain;

const ROOT: u32 = 0;
const OVERLAY_MAGIC: i64 = 0x794c_7630;
const NFS_MAGIC: i64 = 0x6969;
const FUSE_MAGIC: i64 = 0x6573_5546;

/// Tries mounts on this host. None: agents are the daemon's user, so nothing is mapped.
pub(super) type OwnerTrials<'e> = Option<&'e dyn Executor>;

/// The owner and the mode of a mounted path.
#[derive(Debug, Clone, Copy)]
struct MountedPath {
    uid: u32,
    gid: u32,
    mode: u32,
    is_dir: bool,
}

/// Whether the rights of root are meant as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RootRights {
    Kept,
    Given,
}

/// Why the rights of the owner are refused.
#[derive(Debug, thiserror::Error)]
enum OwnerRefusal {
    #[error("`map-root` gives root's rights, which this daemon does not have")]
    NotRoot,
    #[error("it belongs to user {uid}, and {file_system} cannot give an agent that user's rights")]
    Unsupported { uid: u32, file_system: &'static str },
    #[error("it could not be tried whether the agent can get the rights of its owner")]
    NotTried {
        #[source]
        cause: io::Error,
    },
}

/// The owner that is mapped, or none: then the agent has the rights of others, or of the daemon's user.
pub(super) fn mapped_owner(
    trials: OwnerTrials<'_>,
    mount: &Mount,
    host: &str,
) -> Result<Option<MountOwner>, ErrorBody> {
    let refuse = |refused: OwnerRefusal| {
        let what = format!("cannot mount {} at {}: {}", mount.host, mount.target, chain(&refused));
        ErrorBody::new("agent.mount_not_mapped", what).hint(hint(&refused, mount, host))
    };
    let Some(executor) = trials else {
        return if mount.map_root { Err(refuse(OwnerRefusal::NotRoot)) } else { Ok(None) };
    };
    let path = Path::new(host);
    let found = path.metadata().map_err(|cause| refuse(OwnerRefusal::NotTried { cause }))?;
    let found = MountedPath::of(&found);
    let rights = if mount.map_root { RootRights::Given } else { RootRights::Kept };
    let Some(owner) = found.owner(rights) else { return Ok(None) };
    let bind = BindOwner { uid: owner.uid, gid: owner.gid };
    match Handle::current().block_on(executor.try_owner(path, bind)) {
        OwnerTrial::Works => Ok(Some(owner)),
        // A directory that is open to all users needs no rights of its owner.
        OwnerTrial::Unsupported if rights == RootRights::Kept && found.is_open(mount.read_only) => Ok(None),
        OwnerTrial::Unsupported => {
            Err(refuse(OwnerRefusal::Unsupported { uid: owner.uid, file_system: file_system(path) }))
        }
        OwnerTrial::Failed(cause) => Err(refuse(OwnerRefusal::NotTried { cause })),
    }
}

impl MountedPath {
    fn of(found: &Metadata) -> MountedPath {
        MountedPath { uid: found.uid(), gid: found.gid(), mode: found.mode(), is_dir: found.is_dir() }
    }

    /// The owner whose rights a mount gives. Root's, and those of its group, are given only if that was asked for.
    fn owner(self, rights: RootRights) -> Option<MountOwner> {
        match (rights, self.uid) {
            (RootRights::Kept, ROOT) => None,
            (RootRights::Kept, uid) => {
                Some(MountOwner { uid, gid: Some(self.gid).filter(|gid| *gid != ROOT) })
            }
            (RootRights::Given, uid) => Some(MountOwner { uid, gid: Some(self.gid) }),
        }
    }

    /// Whether everybody has the rights that the mount is for.
    fn is_open(self, read_only: bool) -> bool {
        let wanted = match (self.is_dir, read_only) {
            (true, true) => 0o005,
            (true, false) => 0o007,
            (false, true) => 0o004,
            (false, false) => 0o006,
        };
        self.mode & wanted == wanted
    }
}

fn hint(refused: &OwnerRefusal, mount: &Mount, host: &str) -> String {
    match refused {
        OwnerRefusal::NotRoot => {
            "leave `map-root` out, or mount it with a daemon that runs as root".to_owned()
        }
        OwnerRefusal::Unsupported { uid, .. } => {
            let open = if mount.read_only { "rX" } else { "rwX" };
            format!(
                "move it to ext4, xfs, btrfs or tmpfs, run lodged as user {uid}, or give others access: \
                 `chmod -R o+{open} {host}`"
            )
        }
        OwnerRefusal::NotTried { .. } => "remove the cause and try again".to_owned(),
    }
}

/// The file system of a path, in words.
fn file_system(path: &Path) -> &'static str {
    let magic = rustix::fs::statfs(path).map(|found| found.f_type);
    match magic {
        Ok(OVERLAY_MAGIC) => "its file system (overlay)",
        Ok(NFS_MAGIC) => "its file system (nfs)",
        Ok(FUSE_MAGIC) => "its file system (fuse)",
        Ok(_) | Err(_) => "its file system, or one that is mounted in it,",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_mapped_only_if_that_was_asked_for() {
        let path = |uid, gid| MountedPath { uid, gid, mode: 0o40755, is_dir: true };
        let mapped = |uid, gid, rights| path(uid, gid).owner(rights).map(|owner| (owner.uid, owner.gid));
        assert_eq!(mapped(1000, 100, RootRights::Kept), Some((1000, Some(100))));
        assert_eq!(mapped(1000, 100, RootRights::Given), Some((1000, Some(100))));
        assert_eq!(mapped(1000, 0, RootRights::Kept), Some((1000, None)));
        assert_eq!(mapped(0, 100, RootRights::Kept), None);
        assert_eq!(mapped(0, 0, RootRights::Kept), None);
        assert_eq!(mapped(0, 0, RootRights::Given), Some((0, Some(0))));
    }

    #[test]
    fn only_what_everybody_may_use_is_mounted_without_its_owner() {
        let open = |mode, is_dir, read_only| MountedPath { uid: 1, gid: 1, mode, is_dir }.is_open(read_only);
        assert!(open(0o777, true, false) && open(0o755, true, true) && open(0o666, false, false));
        assert!(!open(0o755, true, false) && !open(0o750, true, true) && !open(0o644, false, false));
        assert!(!open(0o776, true, false) && !open(0o754, true, true) && open(0o644, false, true));
    }
}
