//! The inner fence: what processes of the sandbox may do, decided once for all of them.
//!
//! Inherited restrictions are set on the keeper itself, so that starting an exec costs as little as possible.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use lodge_link::{EnforcedLimit, ExecKind, KeeperSpec};
use rustix::fs::{Gid, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_thread_res_gid, set_thread_res_uid};

use crate::bounds::{Bounds, ExecRlimits, ProcessView};
use crate::child::{ChildCommand, ChildEnds, ChildPlan};
use crate::counters;
use crate::disk::WriteSpace;
use crate::fence::{Fence, FileView, Namespaces};
use crate::files::DescriptorLimits;
use crate::group::SandboxCgroup;
use crate::landlock::{self, KeeperDir, Ruleset, TcpAccess};
use crate::layers::Layers;
use crate::network::{SandboxNetwork, SocketGuard};
use crate::notify_sys;
use crate::seccomp::{self, Clone3, ExecFilter, ProcessInspection};
use crate::seccomp_network;
use crate::set_id;
use crate::sys;
use crate::tool_thread::ToolThread;

/// Tools are killed first when memory runs out, then the runtime.
const TOOL_OOM_SCORE_ADJ: i32 = 500;
const RUNTIME_OOM_SCORE_ADJ: i32 = 250;
const LAST_CAPABILITY_MAX: i32 = 63;

/// What a keeper that runs as root still needs: to become the sandbox's user, to signal it, to look at
/// it and at the files that it has mapped, and to take back the score it gives to execs.
const KEEPER_CAPABILITIES: u64 =
    1 << 0 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 19 | 1 << 24 | 1 << 40;

/// The capability of a keeper that runs as an ordinary user in its own user namespace: to inspect programs that forbid
/// it to others.
const USER_CAPABILITIES: u64 = 1 << 19;

/// Whose rights execs run with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExecUser {
    /// The user whom the keeper runs as, who is not root.
    Keeper,
    /// The sandbox's own.
    Own(u32),
}

/// The sandbox, confined.
#[derive(Debug)]
pub(crate) struct ConfinedSandbox {
    pub(crate) layers: Layers,
    pub(crate) namespaces: Namespaces,
    /// Where the agent's directory is for this process.
    pub(crate) root: PathBuf,
    pub(crate) proc_is_ours: bool,
    pub(crate) user: ExecUser,
    pub(crate) oom: Option<OomScore>,
    /// Rules that each exec has to enter by itself.
    pub(crate) rules: Option<Ruleset>,
    /// Where tools are forked, so that they cannot signal the runtime.
    pub(crate) tools: ToolThread,
    /// Rules that keep tools apart from the runtime and from each other.
    pub(crate) apart: Option<Ruleset>,
    /// Rules by which a tool can make no file, for when there is no room.
    pub(crate) makes_nothing: Option<Ruleset>,
    pub(crate) groups: Option<SandboxCgroup>,
    /// What each exec has to install by itself.
    pub(crate) filter: Option<Rc<ExecFilter>>,
    pub(crate) files: DescriptorLimits,
    pub(crate) net: SandboxNetwork,
    /// Rules for a runtime by which it connects and binds nothing by itself, where Landlock guards the network. Those for
    /// tools are among the ones that keep them apart.
    pub(crate) without_tcp: Option<Ruleset>,
    pub(crate) bounds: Bounds,
    /// The directory for the output of commands, for the one who keeps their files.
    pub(crate) logs: Option<OwnedFd>,
}

impl ConfinedSandbox {
    /// What a child of this kind needs to become its program.
    pub(crate) fn child_plan(
        &self,
        (kind, space): (ExecKind, WriteSpace),
        command: ChildCommand,
        ends: ChildEnds,
        rlimits: ExecRlimits,
    ) -> ChildPlan {
        let apart = match kind {
            ExecKind::Tool | ExecKind::Job | ExecKind::Command => self.apart.as_ref(),
            ExecKind::Runtime => self.without_tcp.as_ref(),
        };
        let makes_nothing = match space {
            WriteSpace::Left => None,
            WriteSpace::Full { .. } => self.makes_nothing.as_ref(),
        };
        ChildPlan {
            command,
            ends,
            rules: [self.rules.as_ref(), apart, makes_nothing].map(|rules| rules.map(Ruleset::as_raw_fd)),
            user: self.user,
            files: self.files,
            filter: self.filter.clone(),
            namespaces: self.namespaces,
            rlimits,
        }
    }

    /// Each limit of the sandbox, with what enforces it.
    pub(crate) fn limits_in_force(&self) -> Vec<EnforcedLimit> {
        let processes = if self.proc_is_ours { ProcessView::Seen } else { ProcessView::Hidden };
        self.bounds.in_force(processes)
    }
}

/// The keeper's own score, raised around each fork so that only the child keeps it.
#[derive(Debug)]
pub(crate) struct OomScore {
    file: File,
    own: String,
}

impl OomScore {
    fn open() -> io::Result<OomScore> {
        let own = std::fs::read_to_string("/proc/self/oom_score_adj")?.trim().to_owned();
        let file = File::options().write(true).open("/proc/self/oom_score_adj")?;
        let score = OomScore { file, own };
        score.raise(ExecKind::Tool)?;
        score.restore()?;
        Ok(score)
    }

    pub(crate) fn raise(&self, kind: ExecKind) -> io::Result<()> {
        let own = self.own.parse::<i32>().unwrap_or(0);
        let raised = match kind {
            ExecKind::Tool | ExecKind::Job | ExecKind::Command => TOOL_OOM_SCORE_ADJ,
            ExecKind::Runtime => RUNTIME_OOM_SCORE_ADJ,
        };
        (&self.file).write_all(own.max(raised).to_string().as_bytes())
    }

    pub(crate) fn restore(&self) -> io::Result<()> {
        (&self.file).write_all(self.own.as_bytes())
    }

    /// Opened, if the host lets the keeper set it.
    fn noted(layers: &mut Layers) -> Option<OomScore> {
        match OomScore::open() {
            Ok(score) => {
                layers.holds("oom_score");
                Some(score)
            }
            Err(error) => {
                layers.missing("oom_score", error.to_string());
                None
            }
        }
    }

    /// In a child that is not to be killed before its parent.
    pub(crate) fn as_keeper(&self) -> io::Result<()> {
        std::fs::write("/proc/self/oom_score_adj", &self.own)
    }
}

/// Confines this process and everything that it will start.
pub(crate) fn enter(
    spec: &KeeperSpec,
    dir: &OwnedFd,
    logs: Option<OwnedFd>,
    fence: Fence,
) -> io::Result<ConfinedSandbox> {
    let (root, hides_keeper) = (fence.root(spec), fence.hides_keeper());
    let Fence { mut layers, namespaces, view, proc_is_ours, groups, net, mut bounds } = fence;
    let user = user(spec, &mut layers)?;
    bounds.set_users(user, namespaces);
    let files = DescriptorLimits::raise()?;
    let oom = OomScore::noted(&mut layers);
    // SAFETY: plain settings of this process, without memory.
    unsafe {
        layers.note("not_dumpable", prctl(libc::PR_SET_DUMPABLE, 0));
        layers.note("no_new_privs", prctl(libc::PR_SET_NO_NEW_PRIVS, 1));
    }
    layers.note("capabilities", drop_capabilities(net.capabilities()));
    counters::bound_processes()?;
    let own = own_places(dir, logs.as_ref(), groups.as_ref(), &bounds);
    let own = if hides_keeper { own } else { Vec::new() };
    let rules = landlock::prepare(readable(view), &writable(spec, view), &own, &mut layers);
    // The keeper can share its execs' rules only where they do not see its directory.
    let rules = match rules {
        Some(rules) if hides_keeper => rules.enter().map(|()| None)?,
        Some(_) | None => rules,
    };
    // Where there is no Landlock, that was noted above.
    let supervises = net.supervised.is_some();
    if supervises && !proc_is_ours && !notify_sys::knows_threads()? {
        let why = "the sandbox's network cannot be guarded without a /proc of its own on a kernel before 6.9";
        return Err(io::Error::other(why));
    }
    let closes_tcp = net.supervised.as_ref().is_some_and(|with| with.guard == SocketGuard::Landlock);
    let without_tcp = closes_tcp.then(landlock::without_tcp).transpose()?;
    let tcp = if closes_tcp { TcpAccess::Closed } else { TcpAccess::Open };
    let apart = layers.has("landlock").then(|| landlock::restrict_signals(tcp)).transpose()?;
    if closes_tcp && apart.is_none() {
        return Err(io::Error::other("the sandbox's network cannot be guarded without landlock"));
    }
    let makes_nothing = layers.has("landlock").then(landlock::makes_nothing).transpose()?;
    // Execs that enter all rules themselves cannot signal others anyway.
    let scoped = layers.has("landlock_scope") && rules.is_none();
    let tools = ToolThread::new(if scoped { landlock::tools_scope()? } else { None });
    let clone3 = if groups.is_some() { Clone3::LeftToExecs } else { Clone3::Refused };
    let looks = if supervises { ProcessInspection::LeftToExecs } else { ProcessInspection::Refused };
    let is_filtered = layers.note("seccomp", seccomp::enter(clone3, looks));
    if supervises && !is_filtered {
        return Err(io::Error::other("the sandbox's network cannot be guarded without seccomp"));
    }
    refuse_set_id(spec, is_filtered, &mut layers)?;
    let filter = match (looks, clone3) {
        (ProcessInspection::LeftToExecs, _) => Some(ExecFilter::Reporting(seccomp_network::supervised())),
        (ProcessInspection::Refused, Clone3::LeftToExecs) if is_filtered => {
            Some(ExecFilter::Silent(seccomp::without_clone3()))
        }
        (ProcessInspection::Refused, Clone3::LeftToExecs | Clone3::Refused) => None,
    };
    Ok(ConfinedSandbox {
        layers,
        namespaces,
        root,
        proc_is_ours,
        user,
        oom,
        rules,
        tools,
        apart,
        makes_nothing,
        groups,
        filter: filter.map(Rc::new),
        files,
        net,
        without_tcp,
        bounds,
        logs,
    })
}

/// Keeps programs that write to the host from leaving set-id programs there.
fn refuse_set_id(spec: &KeeperSpec, is_filtered: bool, layers: &mut Layers) -> io::Result<()> {
    let bits = set_id::refused_bits(spec);
    if bits == 0 {
        return Ok(());
    }
    let refused =
        if is_filtered { set_id::refuse_bits(bits) } else { Err(io::Error::other("needs seccomp")) };
    let holds = layers.note("set_id_bits", refused);
    if !holds && layers.has("mount_owner") {
        return Err(io::Error::other("a mount with the rights of its owner needs seccomp"));
    }
    Ok(())
}

/// What the keeper itself has to write. Masks, owners and read-only mounts keep execs from it.
fn own_places<'a>(
    dir: &'a OwnedFd,
    logs: Option<&'a OwnedFd>,
    groups: Option<&'a SandboxCgroup>,
    bounds: &'a Bounds,
) -> Vec<KeeperDir<'a>> {
    let groups = groups.map(|groups| [KeeperDir::Write(&groups.dir), KeeperDir::RemoveFrom(&groups.parent)]);
    let own = std::iter::once(dir).chain(logs).map(KeeperDir::Write).chain(groups.into_iter().flatten());
    own.chain(bounds.parents().map(KeeperDir::RemoveFrom)).collect()
}

/// Where programs may read. In a root of its own there is nothing that a sandbox should not.
fn readable(view: FileView) -> &'static [&'static str] {
    match view {
        FileView::Private => &["/"],
        FileView::Host => &landlock::HOST_PLACES,
    }
}

/// Where programs may write. The root itself is not among it: an ordinary user owns it, and could rename its parts.
fn writable(spec: &KeeperSpec, view: FileView) -> Vec<PathBuf> {
    let binds = spec.binds.iter().filter(|bind| !bind.read_only).map(|bind| &bind.target);
    match (view, &spec.private_root) {
        (FileView::Private, Some(plan)) => {
            let inside = |path: &PathBuf| {
                let below = path.strip_prefix(&spec.root).or_else(|_| path.strip_prefix("/"));
                Path::new("/").join(below.unwrap_or(path))
            };
            let parts = plan.writable.iter().map(|part| Path::new("/").join(part));
            parts.chain(binds.map(inside)).chain(["/dev".into()]).collect()
        }
        (FileView::Private | FileView::Host, _) => {
            let own = [spec.root.clone(), "/tmp".into(), "/var/tmp".into(), "/dev".into()];
            own.into_iter().chain(binds.cloned()).collect()
        }
    }
}

fn user(spec: &KeeperSpec, layers: &mut Layers) -> io::Result<ExecUser> {
    match (sys::is_root(), spec.uid) {
        (true, Some(uid)) if uid != 0 => {
            layers.holds("own_uid");
            Ok(ExecUser::Own(uid))
        }
        (true, Some(_) | None) => Err(io::Error::other("as root, a sandbox needs a uid of its own")),
        (false, Some(_) | None) => {
            layers.missing("own_uid", "needs root");
            Ok(ExecUser::Keeper)
        }
    }
}

/// # Safety
/// `option` must be one that takes a number.
unsafe fn prctl(option: i32, value: libc::c_ulong) -> io::Result<()> {
    // SAFETY: the caller promises that no memory is passed.
    sys::check(unsafe { libc::prctl(option, value, 0, 0, 0) }).map(drop)
}

/// Empties the bounding, ambient and inheritable sets, and keeps of the rest what a keeper needs.
///
/// `also` is what it needs on this host beyond that.
pub(crate) fn drop_capabilities(also: u64) -> io::Result<()> {
    for capability in 0..=LAST_CAPABILITY_MAX {
        let number = libc::c_ulong::from(capability.cast_unsigned());
        // SAFETY: no memory is passed.
        match unsafe { prctl(libc::PR_CAPBSET_DROP, number) } {
            Ok(()) => {}
            // The first number beyond what this kernel knows.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
            // An ordinary user without a namespace has none to drop.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) && !sys::is_root() => break,
            Err(error) => return Err(error),
        }
    }
    let (ambient, clear) = (libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong);
    // SAFETY: no memory is passed.
    unsafe { prctl(ambient, clear)? };
    keep_capabilities(own_capabilities(), also)
}

fn own_capabilities() -> u64 {
    if sys::is_root() { KEEPER_CAPABILITIES } else { USER_CAPABILITIES }
}

/// In a child that stays a keeper's: gives up what only [`with_capability`] puts in force.
pub(crate) fn drop_raisable() -> io::Result<()> {
    set_capabilities(own_capabilities())
}

/// Sets the effective and permitted sets, of those bits that are permitted now; nothing is inheritable.
pub(crate) fn set_capabilities(wanted: u64) -> io::Result<()> {
    keep_capabilities(wanted, 0)
}

/// As [`set_capabilities`], with some that are permitted and not in force.
fn keep_capabilities(effective: u64, raisable: u64) -> io::Result<()> {
    let permitted = capabilities(None)?.permitted;
    let kept = |wanted: u64| permitted & CapabilitySet::from_bits_retain(wanted);
    let sets = CapabilitySets {
        effective: kept(effective),
        permitted: kept(effective | raisable),
        inheritable: CapabilitySet::empty(),
    };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

/// Does something while a capability is in force that is permitted.
pub(crate) fn with_capability<T>(capability: u64, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    if capability == 0 {
        return work();
    }
    let before = capabilities(None)?;
    let effective = before.effective | CapabilitySet::from_bits_retain(capability);
    rustix::thread::set_capabilities(None, CapabilitySets { effective, ..before })?;
    let worked = work();
    rustix::thread::set_capabilities(None, before)?;
    worked
}

/// Does something with the rights of a user and a group of that number, as root that can be itself again. Those of
/// other threads stay as they are.
pub(crate) fn as_user<T>(uid: u32, work: impl FnOnce() -> T) -> io::Result<T> {
    let before = capabilities(None)?;
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
    set_thread_res_gid(None, group, None)?;
    let worked = set_thread_res_uid(None, user, None).map(|()| work());
    // With root's number the kernel puts everything in force that is permitted.
    let back = set_thread_res_uid(None, Uid::ROOT, None)
        .and_then(|()| set_thread_res_gid(None, Gid::ROOT, None))
        .and_then(|()| rustix::thread::set_capabilities(None, before));
    if back.is_err() {
        // Nothing may go on with other rights than it counts on.
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(1) };
    }
    Ok(worked?)
}

/// Does something while a capability is not in force.
pub(crate) fn without_capability<T>(capability: u64, work: impl FnOnce() -> T) -> io::Result<T> {
    let before = capabilities(None)?;
    let effective = before.effective - CapabilitySet::from_bits_retain(capability);
    rustix::thread::set_capabilities(None, CapabilitySets { effective, ..before })?;
    let worked = work();
    rustix::thread::set_capabilities(None, before)?;
    Ok(worked)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAISABLE: u64 = crate::peer_filter::CAP_NET_ADMIN;

    fn has(set: fn(&CapabilitySets) -> CapabilitySet) -> bool {
        set(&capabilities(None).unwrap()).bits() & RAISABLE != 0
    }

    #[test]
    fn a_raisable_capability_is_in_force_only_where_it_is_needed_and_a_guardian_cannot_raise_it() {
        assert!(sys::passes_in_child(|| {
            let (effective, permitted) = (|| has(|sets| sets.effective), || has(|sets| sets.permitted));
            let can_have = permitted();
            assert!(can_have || !sys::is_root(), "run as root, tests have this capability");
            drop_capabilities(RAISABLE).unwrap();
            assert_eq!((effective(), permitted()), (false, can_have));
            let raised = with_capability(RAISABLE, || Ok(effective()));
            assert_eq!(raised.ok(), can_have.then_some(true));
            assert_eq!((effective(), permitted()), (false, can_have));
            if sys::is_root() {
                let uid = as_user(65_534, || rustix::process::geteuid().as_raw()).unwrap();
                assert_eq!((uid, effective(), permitted()), (65_534, false, can_have));
            }
            drop_raisable().unwrap();
            assert_eq!((effective(), permitted()), (false, false));
            let refused = with_capability(RAISABLE, || Ok(())).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        }));
    }
}
