//! The `/etc` of an agent: users, host names and name resolution. It contains nothing about the host's users.

use std::path::Path;

use lodge_core::record::NetworkMode;

use super::tree::put;
use super::{RootError, RootPlan};
use crate::host_etc;

/// The longest host name that Linux accepts.
const HOSTNAME_MAX: usize = 63;
const NOBODY: u32 = 65_534;

/// The configuration of name resolution in a sandbox.
struct Resolver {
    /// `/etc/resolv.conf`.
    servers: String,
    /// `/etc/hosts`, without the sandbox's own name.
    hosts: String,
}

/// The name resolution of each network mode.
fn resolver(reach: NetworkMode) -> Resolver {
    let own = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n".to_owned();
    match reach {
        NetworkMode::Host => {
            Resolver { servers: host_etc::text_of("resolv.conf"), hosts: host_etc::text_of("hosts") }
        }
        // Without a network there is no server to ask.
        NetworkMode::None => Resolver { servers: String::new(), hosts: own },
        // The keeper mounts its own file over this one. It names the gate, which resolves names outside.
        NetworkMode::List | NetworkMode::Public | NetworkMode::Lan => {
            Resolver { servers: String::new(), hosts: own }
        }
    }
}

/// Writes the agent's own files of `/etc`. An overlay shows the copy of the host's files beneath them.
pub(super) fn make(etc: &Path, plan: &RootPlan<'_>) -> Result<(), RootError> {
    let name = hostname(plan.name);
    let reach = plan.settings.network.as_ref().map_or(NetworkMode::Host, |network| network.reach());
    let Resolver { servers, hosts } = resolver(reach);
    let uid = plan.uid.unwrap_or_else(|| rustix::process::geteuid().as_raw());
    let gid = plan.uid.unwrap_or_else(|| rustix::process::getegid().as_raw());
    let shell =
        if plan.settings.tools.iter().any(|tool| tool.name == "sh") { "/opt/bins/sh" } else { "/bin/sh" };
    let (passwd, group) = accounts(uid, gid, shell);
    for (file, text) in [
        ("passwd", passwd),
        ("group", group),
        ("hosts", format!("{}\n127.0.1.1 {name}\n", hosts.trim_end())),
        ("resolv.conf", servers),
        (
            "nsswitch.conf",
            "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n".to_owned(),
        ),
        ("host.conf", "multi on\n".to_owned()),
        ("hostname", format!("{name}\n")),
    ] {
        put(&etc.join(file), text.as_bytes())?;
    }
    Ok(())
}

/// The texts of `passwd` and `group`: the sandbox's own user, and the owners of files that it sees.
fn accounts(uid: u32, gid: u32, shell: &str) -> (String, String) {
    let mut passwd =
        format!("root:x:0:0:root:/root:/usr/sbin/nologin\nagent:x:{uid}:{gid}:agent:/home:{shell}\n");
    let mut group = format!("root:x:0:\nagent:x:{gid}:\n");
    if uid != NOBODY {
        passwd.push_str(&format!("nobody:x:{NOBODY}:{NOBODY}:nobody:/nonexistent:/usr/sbin/nologin\n"));
    }
    if gid != NOBODY {
        group.push_str(&format!("nogroup:x:{NOBODY}:\n"));
    }
    (passwd, group)
}

/// Converts the name of an agent to a valid host name.
pub(in crate::act) fn hostname(name: &str) -> String {
    let allowed = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '-' };
    let name: String = name.chars().map(allowed).take(HOSTNAME_MAX).collect();
    let name = name.trim_matches('-');
    if name.is_empty() { "agent".to_owned() } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_agent_name_becomes_a_valid_host_name() {
        assert_eq!(hostname("coder"), "coder");
        assert_eq!(hostname("my_agent.two"), "my-agent-two");
        assert_eq!(hostname("…"), "agent");
        assert_eq!(hostname(&"x".repeat(200)).len(), HOSTNAME_MAX);
    }

    #[test]
    fn every_user_is_listed_once() {
        for uid in [100_001, NOBODY] {
            let (passwd, group) = accounts(uid, uid, "/bin/sh");
            let ids = |text: &str| -> Vec<u32> {
                text.lines().map(|line| line.split(':').nth(2).unwrap().parse().unwrap()).collect()
            };
            let (mut users, mut groups) = (ids(&passwd), ids(&group));
            users.dedup();
            groups.dedup();
            assert_eq!(users.len(), passwd.lines().count());
            assert!(users.contains(&uid) && groups.contains(&uid));
        }
    }
}
