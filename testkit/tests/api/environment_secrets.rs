//! Nothing of the daemon's environment, and no key, reaches an agent or is written down.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use lodge_testkit::lodge::until;
use serde_json::{Value, json};

use crate::auth::holding;
use crate::world::{AGENTFILE, ApiWorld, family, sh};

fn cmdline(pid: i32) -> String {
    String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()).into_owned()
}

/// Variables of one process, by the kernel's own account.
fn environ(pid: i32) -> BTreeSet<String> {
    let bytes = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    text.split('\0').filter(|pair| !pair.is_empty()).map(str::to_owned).collect()
}

#[tokio::test]
async fn nothing_of_the_daemons_environment_and_no_key_reaches_a_process_a_file_or_a_database() {
    let mut world = ApiWorld::asleep();
    let canaries = ["of-the-host-0123456789", "sk-planted-0123456789", "key-of-the-provider-0123456789"];
    world.lodge.set_env("PLANTED_BY_THE_HOST", canaries[0]);
    world.lodge.set_env("SSH_AUTH_SOCK", canaries[0]);
    world.lodge.set_env("ANTHROPIC_API_KEY", canaries[1]);
    world.lodge.set_env("MOCK_API_KEY", canaries[1]);
    // The scripted provider refuses any other key, so the one it has is looked for too.
    let entry = world.provider("mock", &world.mock.base_url());
    let spare = format!(
        "  - name: spare\n    kind: openai\n    base-url: http://127.0.0.1:1/\n    api-key: {}\n",
        canaries[2]
    );
    world.put_providers(&format!("{entry}{spare}"));
    world.lodge.start();
    let mut api = world.checked().await;
    let content = format!("{AGENTFILE}ENV FROM_IMAGE=one\nNETWORK example.invalid:443\n");
    let plain = format!("{AGENTFILE}ENV FROM_IMAGE=one\n");
    let mut roots = Vec::new();
    for (name, content) in [("plain", plain), ("gated", content)] {
        api.ok("agent/create", json!({"content": content, "name": name, "env": {"GIVEN": "two"}})).await;
        let view = api.agent_is(name, "ready").await;
        roots.push(view["root"].as_str().expect("a root").to_owned());
        let script = "env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline; cat \"$LODGE_AGENT_ROOT\"/etc/* \
             \"$LODGE_AGENT_ROOT\"/etc/context/*; : > ready; exec sleep 600";
        let params = json!({"agent": name, "session": name, "text": sh(script)});
        api.ok("turn/send", params).await;
        let ready = Path::new(roots.last().expect("it")).join("workspace/ready");
        until("the tool runs", || ready.exists().then_some(()));
    }
    until("both tools have become what they run", || {
        let all = world.lodge.keepers().into_iter().flat_map(family);
        (all.filter(|pid| cmdline(*pid).starts_with("sleep\0")).count() == 2).then_some(())
    });
    let mut secrets: Vec<&str> = canaries.to_vec();
    secrets.push(crate::world::KEY);
    let token = world.lodge.token();
    secrets.push(&token);
    let mut sleepers = 0;
    for pid in world.lodge.keepers().into_iter().flat_map(family) {
        let cmdline = cmdline(pid);
        let environ = environ(pid);
        let all = format!("{cmdline} {environ:?}");
        assert!(secrets.iter().all(|secret| !all.contains(secret)), "process {pid} has a secret: {all}");
        if cmdline.starts_with("sleep\0") {
            sleepers += 1;
            let is_gated = environ.iter().any(|pair| pair.starts_with("HTTP_PROXY="));
            let mut expected: BTreeSet<String> = [
                "LANG=C.UTF-8".to_owned(),
                "LODGE_AGENT_ROOT=/".to_owned(),
                "FROM_IMAGE=one".to_owned(),
                "GIVEN=two".to_owned(),
            ]
            .into();
            for (key, below) in [
                ("PATH", "opt/bins"),
                ("HOME", "home"),
                ("XDG_CONFIG_HOME", "home/.config"),
                ("XDG_CACHE_HOME", "home/.cache"),
                ("XDG_DATA_HOME", "home/.local/share"),
                ("TMPDIR", "tmp"),
            ] {
                expected.insert(format!("{key}=/{below}"));
            }
            // The shell always sets these for its children.
            let seen: BTreeSet<String> = environ
                .into_iter()
                .filter(|pair| !["PWD=", "OLDPWD=", "SHLVL=", "_="].iter().any(|own| pair.starts_with(own)))
                .collect();
            if is_gated {
                let (proxies, rest): (BTreeSet<_>, BTreeSet<_>) = seen.into_iter().partition(|pair| {
                    pair.to_uppercase().split('=').next().is_some_and(|k| k.ends_with("_PROXY"))
                });
                assert_eq!(rest, expected);
                assert!(proxies.iter().all(|pair| pair.contains("127.0.0.1") || pair.to_uppercase().starts_with("NO_PROXY")), "{proxies:?}");
            } else {
                assert_eq!(seen, expected);
            }
        }
    }
    assert_eq!(sleepers, 2, "both tools were looked at");
    let home = world.lodge.home();
    for (secret, place) in secrets.iter().zip([
        None,
        None,
        Some("providers.yaml"),
        Some("providers.yaml"),
        Some("credentials.json"),
    ]) {
        let expected: Vec<String> = place.iter().map(|name| home.join(name).display().to_string()).collect();
        assert_eq!(holding(&home, secret), expected, "{secret} was written down");
        assert!(!world.lodge.log().contains(secret), "{secret} was logged");
    }
    let mut told = String::new();
    for (method, params) in [
        ("info", json!({})),
        ("agent/get", json!({"agent": "plain"})),
        ("agent/logs", json!({"agent": "plain"})),
        ("session/messages", json!({"session": "plain"})),
        ("provider/list", json!({})),
    ] {
        told.push_str(&api.ok(method, params).await.to_string());
    }
    assert!(secrets.iter().all(|secret| !told.contains(secret)), "the API told a secret");
    for name in ["plain", "gated"] {
        let removed: Value = api.ok("agent/remove", json!({"agent": name, "force": true})).await;
        assert_eq!(removed["status"], "removed");
    }
}
