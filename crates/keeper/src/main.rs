//! The program in every sandbox: pid 1 of its namespace, parent of everything that runs in it.
//!
//! Owns: execs, their pipes, output files and exit records, the fence around them, and the link to a
//! daemon that comes and goes. Never: models, prompts, JSON, networks, or a decision about what to run.

mod captured;
mod commands;
mod confine;
mod ends;
mod execs;
mod fence;
mod files;
mod group;
mod guardian;
mod keep;
mod kills;
mod landlock;
mod launch;
mod layers;
mod log;
mod masks;
mod peers;
mod probe;
mod read_only;
mod relay;
mod seccomp;
mod spawn;
mod sys;
mod tree;

use std::process::ExitCode;

use lodge_link::Grouping;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let verb = args.next();
    match verb.as_ref().and_then(|verb| verb.to_str()) {
        Some("keep") => launch::keep(),
        Some("probe") => probe::probe(grouping(args)),
        Some(_) | None => {
            eprintln!(
                "error: `keeper keep` is started by lodged; `keeper probe` tells what this host can do"
            );
            ExitCode::from(2)
        }
    }
}

/// From the arguments of a probe: `cgroup <name>`, or `none <why>`.
fn grouping(args: impl Iterator<Item = std::ffi::OsString>) -> Grouping {
    let words: Vec<String> = args.map(|arg| arg.to_string_lossy().into_owned()).collect();
    match words.as_slice() {
        [kind, name] if kind == "cgroup" => Grouping::Cgroup { name: name.clone() },
        [kind, why] if kind == "none" => Grouping::None { why: why.clone() },
        [..] => Grouping::None { why: "none was given".to_owned() },
    }
}
