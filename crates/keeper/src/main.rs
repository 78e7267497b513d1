//! The program in every sandbox: pid 1 of its namespace, parent of everything that runs in it.
//!
//! Owns: execs, their pipes, output files and exit records, the fence around them, and the link to a
//! daemon that comes and goes. Never: models, prompts, JSON, or a decision about what to run.

mod binds;
mod bounds;
mod bpf;
mod captured;
mod child;
mod child_report;
mod commands;
mod confine;
mod counters;
mod devices;
mod disk;
mod ends;
mod execs;
mod fence;
mod files;
mod gate;
mod gate_answers;
mod gate_body;
mod gate_dns;
mod gate_http;
mod gate_names;
mod gate_relay;
mod gate_rules;
mod gate_serve;
mod group;
mod guardian;
mod host_trees;
mod job;
mod keep;
mod kills;
mod landlock;
mod launch;
mod layers;
mod loads;
mod local_ports;
mod log;
mod masked;
mod masks;
mod measure;
mod mounts;
mod netlink;
mod network;
mod notify;
mod notify_address;
mod notify_connect;
mod notify_epoll;
mod notify_open;
mod notify_options;
mod notify_probe;
mod notify_sys;
mod owner_map;
mod parts;
mod peer_filter;
mod peers;
mod private_root;
mod probe;
mod read_only;
mod relay;
mod removed;
mod seccomp;
mod seccomp_network;
mod set_id;
mod sockets;
mod spares;
mod spawn;
mod starter;
mod stock;
mod supplementary;
mod sys;
mod tool_thread;
mod tree;
mod trial;
mod watch;
mod watchdog;

use std::process::ExitCode;

use lodge_link::{Controllers, Grouping};

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    // It was started by a descriptor, whose number would be its name.
    sys::set_name(args.next().as_deref());
    let verb = args.next();
    match verb.as_ref().and_then(|verb| verb.to_str()) {
        Some("keep") => launch::keep(),
        Some("gate") => gate::run(),
        Some("probe") => probe::probe(cgroups(args)),
        Some("map") => owner_map::try_path(&args.collect::<Vec<_>>()),
        Some(_) | None => {
            eprintln!(
                "error: `keeper keep` is started by lodged; `keeper probe` tells what this host can do"
            );
            ExitCode::from(2)
        }
    }
}

/// From the arguments of a probe: `cgroup <name>` or `none <why>`, then `memory <path>` and `pids <path>` where there
/// are such cgroups of the first version.
fn cgroups(args: impl Iterator<Item = std::ffi::OsString>) -> (Grouping, Controllers) {
    let words: Vec<String> = args.map(|arg| arg.to_string_lossy().into_owned()).collect();
    let mut grouping = Grouping::None { why: "none was given".to_owned() };
    let mut controllers = Controllers::default();
    for pair in words.chunks_exact(2) {
        let value = pair[1].clone();
        match pair[0].as_str() {
            "cgroup" => grouping = Grouping::Cgroup { name: value },
            "none" => grouping = Grouping::None { why: value },
            "memory" => controllers.memory = Some(value.into()),
            "pids" => controllers.pids = Some(value.into()),
            _unknown => {}
        }
    }
    (grouping, controllers)
}
