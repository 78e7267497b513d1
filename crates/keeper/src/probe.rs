//! `keeper probe`: tries each layer of the fence on this host and prints how it went.
//!
//! One line a layer: `name<TAB>ok` or `name<TAB>missing<TAB>why`.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use lodge_link::{Controllers, Grouping, KeeperSpec, Limits, Network, SECRET_LEN, Secret};

use crate::confine;
use crate::fence::{self, Fence};
use crate::layers::Layers;
use crate::network::{self, Net};
use crate::sys;

/// Any user that is not root will do to see whether there can be one.
const PROBE_UID: u32 = 65_534;

pub(crate) fn probe(cgroups: (Grouping, Controllers)) -> ExitCode {
    match try_layers(cgroups) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: could not probe: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Builds a whole fence around a child that has nothing to run, and lets it tell.
fn try_layers((grouping, controllers): (Grouping, Controllers)) -> io::Result<()> {
    let spec = KeeperSpec {
        sandbox: "probe".to_owned(),
        incarnation: 0,
        secret: Secret::new([0; SECRET_LEN]),
        state_dir: "/run".into(),
        root: "/tmp".into(),
        uid: Some(PROBE_UID),
        binds: Vec::new(),
        failpoint: String::new(),
        grouping,
        network: Network::Host,
        limits: Limits::default(),
        controllers,
    };
    let mut layers = Layers::default();
    let namespaces = fence::unshare(&spec, &mut layers)?;
    // SAFETY: this process has one thread, so the child may do anything that the parent may.
    match sys::check(unsafe { libc::fork() })? {
        0 => {}
        child => return await_child(child),
    }
    let dir: OwnedFd = std::fs::File::open("/")?.into();
    network::probe(&spec, namespaces, &mut layers);
    let mut fence = Fence::build(&spec, namespaces, layers, Net::default())?;
    fence.bound(&spec);
    let confined = confine::enter(&spec, &dir, fence)?;
    let mut out = io::stdout().lock();
    for layer in &confined.layers.list {
        match &layer.missing {
            None => writeln!(out, "{}\tok", layer.name)?,
            Some(why) => writeln!(out, "{}\tmissing\t{}", layer.name, why.replace(['\n', '\t'], " "))?,
        }
    }
    Ok(())
}

fn await_child(child: i32) -> io::Result<()> {
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    sys::check(unsafe { libc::waitpid(child, &mut status, 0) })?;
    if status == 0 { Ok(()) } else { Err(io::Error::other("the probing process failed")) }
}
