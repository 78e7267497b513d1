//! A store that cannot be reached for a while, and one that another daemon took.

use std::path::PathBuf;

use lodge_testkit::lodge::PATIENCE;
use serde_json::json;

use crate::world::{ApiWorld, id};

/// A world whose store does what a file says.
fn world_with_faults() -> (ApiWorld, PathBuf) {
    let mut world = ApiWorld::asleep();
    let fault = world.lodge.dir().join("store-fault");
    world.lodge.set_env("LODGED_STORE_FAULT", fault.to_str().expect("a path"));
    world.lodge.start();
    (world, fault)
}

#[tokio::test]
async fn nobody_is_answered_while_the_store_is_away_and_then_everything_goes_on() {
    // Away before the commit, and after it.
    for word in ["away", "unsure"] {
        let (world, fault) = world_with_faults();
        let mut api = world.checked().await;
        let agent = world.agent(&mut api, "one").await;
        std::fs::write(&fault, word).expect("a fault");
        let asked = json!({"agent": agent, "session": "s", "text": "[[reply:x]]", "request_id": "r"});
        let (mut client, given) = (world.lodge.client().await, asked.clone());
        let answer = tokio::spawn(async move { client.call_value("turn/send", given).await });
        api.until("info", json!({}), |info| info["storage"]["state"] == "away").await;
        let other = json!({"agent": agent, "session": "t", "text": "[[reply:x]]"});
        api.refused("turn/send", other.clone(), "daemon.store_away").await;
        assert!(!answer.is_finished(), "{word}: nobody knows yet");
        std::fs::remove_file(&fault).expect("a fault that ends");
        let sent = answer.await.expect("a task").expect("an answer");
        api.until("turn/get", json!({"turn": id(&sent)}), |turn| turn["status"] == "done").await;
        api.until("info", json!({}), |info| info["storage"]["state"] == "enough").await;
        assert_eq!(api.ok("turn/send", asked).await["id"], sent["id"]);
        let turns = api.ok("turn/list", json!({"session": "s"})).await;
        assert_eq!(turns["turns"].as_array().expect("turns").len(), 1, "{word}: {turns:#}");
        api.ok("turn/send", other).await;
    }
}

#[tokio::test]
async fn a_daemon_whose_store_another_one_took_stops_at_once_and_acknowledges_nothing() {
    let (mut world, fault) = world_with_faults();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    std::fs::write(&fault, "fenced").expect("a fault");
    let mut client = world.lodge.client().await;
    let asked = json!({"agent": agent, "session": "s", "text": "[[reply:x]]"});
    assert!(client.call_value("turn/send", asked).await.is_err());
    let ended = world.lodge.wait_ended(PATIENCE).await.expect("a daemon").expect("its end");
    assert_eq!(ended.code(), Some(74), "{}", world.lodge.log());
    assert!(world.mock.requests().expect("requests").is_empty(), "nothing was done about it");
    std::fs::remove_file(&fault).expect("a fault that ends");
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    api.refused("turn/list", json!({"session": "s"}), "session.not_found").await;
}
