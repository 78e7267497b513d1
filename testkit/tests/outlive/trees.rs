//! No process that a tool started survives its agent, regardless of its attempts to escape.

use lodge_testkit::lodge::{is_alive, until};
use serde_json::json;

use crate::processes::{at_work, command_line, pid};
use crate::world::{AGENTFILE, ApiWorld, family, sh};

/// What is left running, by the numbers in its command line, after the tool itself has ended: daemons with a session of
/// their own, one who does not listen, and one who holds the pipe open.
const LEAVE_BEHIND: &str = "setsid sh -c 'sleep 70001 & sleep 70002 &' < /dev/null > /dev/null 2>&1; \
     (trap '' TERM HUP INT; exec sleep 70003) > /dev/null 2>&1 & \
     sleep 70004 & echo left";

#[tokio::test]
async fn daemons_deaf_children_and_holders_of_pipes_die_with_the_kill_stop_and_removal_of_their_agent() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    for method in ["kill", "stop", "remove"] {
        let content = format!("{AGENTFILE}BIN setsid host:setsid \"a session of its own\"\n");
        api.ok("agent/create", json!({"content": content, "name": method})).await;
        let view = api.agent_is(method, "ready").await;
        let agent = view["id"].as_str().expect("an id");
        let text = format!("{} [[reply:{{{{tool}}}}]]", sh(LEAVE_BEHIND));
        assert_eq!(api.answer(agent, &format!("left-{method}"), &text).await, "left\n");
        let left: Vec<i32> = until("all of them are there", || {
            let found = family(pid(&view)).into_iter();
            let found: Vec<i32> = found.filter(|pid| command_line(*pid).starts_with("sleep 7000")).collect();
            (found.len() == 4).then_some(found)
        });
        // And one more that is still at work.
        at_work(&world, &mut api, agent).await;
        let all = family(pid(&view));
        let params =
            if method == "remove" { json!({"agent": agent, "force": true}) } else { json!({"agent": agent}) };
        api.ok(&format!("agent/{method}"), params).await;
        let alive: Vec<String> =
            all.iter().chain(&left).filter(|pid| is_alive(**pid)).map(|pid| command_line(*pid)).collect();
        assert!(alive.is_empty(), "{method}: {alive:?}");
    }
    assert!(world.lodge.keepers().is_empty());
}
