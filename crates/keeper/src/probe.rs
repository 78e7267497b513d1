//! `keeper probe`: tries each layer of the fence on this host and prints how it went.
//!
//! One line a layer: `name<TAB>ok` or `name<TAB>missing<TAB>why`.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use lodge_link::{Controllers, Grouping, KeeperSecret, KeeperSpec, Limits, Network, PrivateRoot, SECRET_LEN};

use crate::confine;
use crate::fence::{self, Fence, Namespaces};
use crate::layers::Layers;
use crate::mounts::{make_private, mount};
use crate::network::{self, SandboxNetwork};
use crate::sys;

/// Any user that is not root will do to see whether there can be one.
const PROBE_UID: u32 = 65_534;
const PROBE_ROOT: &str = "/tmp";

pub(crate) fn probe(cgroups: (Grouping, Controllers)) -> ExitCode {
    match try_layers(cgroups) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: could not probe: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Builds a whole fence around a child without a program, and lets the child report it.
fn try_layers((grouping, controllers): (Grouping, Controllers)) -> io::Result<()> {
    let mut spec = KeeperSpec {
        sandbox: "probe".to_owned(),
        incarnation: 0,
        secret: KeeperSecret::new([0; SECRET_LEN]),
        state_dir: "/run".into(),
        root: PROBE_ROOT.into(),
        uid: Some(PROBE_UID),
        binds: Vec::new(),
        failpoint: String::new(),
        grouping,
        network: Network::Host,
        limits: Limits::default(),
        controllers,
        private_root: None,
        logs: None,
    };
    let mut layers = Layers::default();
    let namespaces = fence::unshare(&spec, &mut layers)?;
    // SAFETY: this process has one thread, so the child may do anything that the parent may.
    match sys::check(unsafe { libc::fork() })? {
        0 => {}
        child => return await_child(child),
    }
    if namespaces == Namespaces::Own && hide_probe_root().is_ok() {
        let host_trees = vec!["/usr".into()];
        let hostname = "probe".to_owned();
        spec.private_root = Some(PrivateRoot { hostname, host_trees, writable: Vec::new(), host_etc: None });
    }
    let dir: OwnedFd = std::fs::File::open(PROBE_ROOT)?.into();
    network::probe(&spec, namespaces, &mut layers);
    let fence = Fence::build(&spec, &dir, namespaces, layers, SandboxNetwork::default())?;
    let confined = confine::enter(&spec, &dir, None, fence)?;
    let mut out = io::stdout().lock();
    for layer in &confined.layers.list {
        match &layer.missing {
            None => writeln!(out, "{}\tok", layer.name)?,
            Some(why) => writeln!(out, "{}\tmissing\t{}", layer.name, why.replace(['\n', '\t'], " "))?,
        }
    }
    Ok(())
}

/// Lays an empty directory over the root of the probe, so that nothing is made in the host's.
fn hide_probe_root() -> io::Result<()> {
    make_private()?;
    let place = sys::c_string(OsStr::new(PROBE_ROOT))?;
    mount(Some(c"tmpfs"), &place, Some(c"tmpfs"), libc::MS_NODEV, Some(c"mode=0755,size=64k,nr_inodes=64"))
}

fn await_child(child: i32) -> io::Result<()> {
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    sys::check(unsafe { libc::waitpid(child, &mut status, 0) })?;
    if status == 0 { Ok(()) } else { Err(io::Error::other("the probing process failed")) }
}
