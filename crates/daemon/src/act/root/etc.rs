//! The `/etc` of an agent: users, names and what programs of the host look up, with nothing of the host's people in it.

use std::path::Path;

use lodge_core::record::NetworkMode;
use lodge_engine::SandboxPlan;

use super::RootError;
use super::tree::put;
use crate::host_etc;

/// The longest name that Linux takes for a host.
const HOSTNAME_MAX: usize = 63;
const NOBODY: u32 = 65_534;

/// What names resolve by in a sandbox.
struct Resolver {
    /// `/etc/resolv.conf`.
    servers: String,
    /// `/etc/hosts`, without the sandbox's own name.
    hosts: String,
}

/// What names resolve by, for each kind of network.
fn resolver(reach: NetworkMode) -> Resolver {
    let own = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n".to_owned();
    match reach {
        NetworkMode::Host => {
            Resolver { servers: host_etc::text_of("resolv.conf"), hosts: host_etc::text_of("hosts") }
        }
        // Nothing answers, so nothing is asked.
        NetworkMode::None => Resolver { servers: String::new(), hosts: own },
        // The keeper puts the place of the gate, which resolves names outside, over this.
        NetworkMode::List | NetworkMode::Public | NetworkMode::Lan => {
            Resolver { servers: String::new(), hosts: own }
        }
    }
}

/// Writes what is the agent's own in its `/etc`. The copy of the host's is read beneath it.
pub(super) fn make(etc: &Path, plan: &SandboxPlan) -> Result<(), RootError> {
    let name = hostname(&plan.name);
    let reach = plan.spec.network.as_ref().map_or(NetworkMode::Host, |network| network.reach());
    let Resolver { servers, hosts } = resolver(reach);
    let uid = plan.uid.unwrap_or_else(|| rustix::process::geteuid().as_raw());
    let gid = plan.uid.unwrap_or_else(|| rustix::process::getegid().as_raw());
    let shell = if plan.spec.tools.iter().any(|tool| tool.name == "sh") { "/opt/bins/sh" } else { "/bin/sh" };
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

/// The texts of `passwd` and `group`: the sandbox's own user, and those whose files it sees.
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

/// The name of an agent as a host can have it.
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
    fn a_host_name_is_one_whatever_the_agent_is_called() {
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
