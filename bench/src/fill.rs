//! A state directory with much in it, made by multiplying what one real agent left in its database.
//!
//! Only here is the database written from outside, with the daemon gone, so that a million events take seconds.

use lodge_testkit::lodge::Lodge;
use rusqlite::{Connection, params};
use serde_json::json;

use crate::start::quiet;
use crate::world::wait_ready;

const AGENTFILE: &str = "# syntax=lodge/agentfile:1\nFROM scratch\nNAME seed\nMODEL script/bench\n\
                         BIN true host:true safe \"does nothing\"\nADD bench.yaml \"what the model says\"\n";
const SCRIPT: &str = "turns:\n  - steps:\n      - text: \"A plain answer of one line.\"\n";
/// What one turn without tools leaves in the log, about.
pub(crate) const EVENTS_A_TURN: u32 = 10;

/// A state directory without a daemon: `agents` stopped agents with one session each, `events` events in all.
pub(crate) fn filled(agents: u32, events: u32) -> Lodge {
    let mut lodge = quiet();
    lodge.start();
    // A thread of its own, as the caller runs within a runtime already.
    std::thread::scope(|scope| scope.spawn(|| seed(&lodge)).join()).expect("an agent that did one turn");
    lodge.kill9();
    add(&lodge, agents, events);
    lodge
}

/// Adds this many agents to a directory without a daemon, alternately as copies of `seed` and `broken`.
pub(crate) fn add(lodge: &Lodge, agents: u32, events: u32) {
    let connection = Connection::open(lodge.home().join("daemon.db")).expect("the database");
    multiply(&connection, agents, events).expect("a filled database");
    connection.close().expect("a closed database");
}

/// One agent that did one turn and was stopped.
fn seed(lodge: &Lodge) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(stopped(lodge));
}

/// Creates an agent `seed` that does one turn and is stopped.
pub(crate) async fn stopped(lodge: &Lodge) {
    let mut client = lodge.client().await;
    let dir = lodge.agent_dir("seed", AGENTFILE, &[("bench.yaml", SCRIPT)]);
    let made = client.call_value("agent/create", json!({"path": dir})).await.expect("an agent");
    let agent = made["id"].as_str().expect("an agent has an id").to_owned();
    wait_ready(&mut client, &agent).await;
    client.call_value("client/attach", json!({"agent": agent})).await.expect("an attachment");
    let turn = json!({"agent": agent, "session": "seed", "text": "hello", "request_id": "seed"});
    client.call_value("turn/send", turn).await.expect("a turn");
    while client.next().await.expect("an event").params["kind"] != "turn.finished" {}
    client.call_value("agent/stop", json!({"agent": agent})).await.expect("a stopped agent");
}

/// Creates an agent `broken` whose runtime ends at once.
pub(crate) async fn broken(lodge: &Lodge) {
    let mut client = lodge.client().await;
    let text = AGENTFILE.replace("NAME seed", "NAME broken");
    let dir =
        lodge.agent_dir("broken", &format!("{text}EXEC [\"no-such-command\"]\n"), &[("bench.yaml", SCRIPT)]);
    client.call_value("client/attach", json!({"all": true})).await.expect("an attachment");
    client.call_value("agent/create", json!({"path": dir})).await.expect("an agent");
    while client.next().await.expect("an event").params["kind"] != "agent.failed" {}
}

fn multiply(connection: &Connection, agents: u32, events: u32) -> rusqlite::Result<()> {
    connection.execute_batch(
        "PRAGMA synchronous = OFF; PRAGMA foreign_keys = OFF; PRAGMA cache_size = -65536; BEGIN",
    )?;
    let turns = (events / EVENTS_A_TURN / agents).max(1);
    connection.execute_batch(
        "CREATE TEMP TABLE n (i INTEGER PRIMARY KEY);
         CREATE TEMP TABLE one AS SELECT row_number() OVER (ORDER BY name) - 1 AS k, * FROM agents
             WHERE name IN ('seed', 'broken');
         CREATE TEMP TABLE told AS SELECT row_number() OVER (ORDER BY seq) - 1 AS k, kind, data, at FROM events
             WHERE kind >= 50;",
    )?;
    connection.execute(
        "INSERT INTO n WITH RECURSIVE c (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < ?1) SELECT i FROM c",
        [agents.max(events)],
    )?;
    let made = connection.execute(
        "INSERT INTO agents (id, name, image, image_digest, lineage, sandbox, state, failure_reason, failure_detail, incarnation,
             uid, created_at, started_at, spec, runs)
         SELECT printf('agt_%017d', n.i), printf('agent-%d', n.i), image, image_digest,
             printf('lin_%017d', n.i), printf('sbx_%017d', n.i), state, failure_reason, failure_detail, incarnation,
             1800000000 + n.i, created_at, started_at, spec, runs
         FROM n JOIN one ON one.k = n.i % (SELECT count(*) FROM one) WHERE n.i <= ?1",
        [agents],
    )?;
    assert_eq!(made, usize::try_from(agents).unwrap_or(0), "an agent for each number");
    connection.execute(
        "INSERT INTO lineages SELECT printf('lin_%017d', n.i), printf('agt_%017d', n.i), 1, NULL, 0, 0, NULL, 1, NULL FROM n
         WHERE n.i <= ?1",
        [agents],
    )?;
    connection.execute(
        "INSERT INTO sessions (id, agent, sender, created_at, last_active)
         SELECT printf('session-%d', n.i), printf('agt_%017d', n.i), 'someone', 1, n.i FROM n WHERE n.i <= ?1",
        [agents],
    )?;
    connection.execute(
        "INSERT INTO turns (id, session, agent, number, state, first_event, first_message, created_at, ended_at, input_tokens,
             output_tokens, failure)
         SELECT printf('trn_%010d%07d', t.i, a.i), printf('session-%d', a.i), printf('agt_%017d', a.i),
             t.i, seed.state, t.i * 10 - 9, t.i * 2 - 1, seed.created_at, seed.ended_at, 10, 10, NULL
         FROM n AS a, n AS t, (SELECT * FROM turns LIMIT 1) AS seed WHERE a.i <= ?1 AND t.i <= ?2",
        params![agents, turns],
    )?;
    connection.execute(
        "INSERT INTO steps (turn, step, ordinal, id, kind, name, state, attempt, call, exec, request, exit_code, signal, started_at,
             ended_at)
         SELECT printf('trn_%010d%07d', t.i, a.i), 1, 0, printf('stp_%010d%07d', t.i, a.i), seed.kind,
             seed.name, seed.state, 1, NULL, NULL, NULL, NULL, NULL, seed.started_at, seed.ended_at
         FROM n AS a, n AS t, (SELECT * FROM steps LIMIT 1) AS seed WHERE a.i <= ?1 AND t.i <= ?2",
        params![agents, turns],
    )?;
    connection.execute(
        "INSERT INTO messages (session, seq, turn, number, step, role, at, body)
         SELECT printf('session-%d', a.i), t.i * 2 - 2 + seed.seq, printf('trn_%010d%07d', t.i, a.i), t.i,
             seed.step, seed.role, seed.at + t.i * 1000 + a.i, seed.body
         FROM n AS a, n AS t, (SELECT * FROM messages WHERE session = 'seed') AS seed WHERE a.i <= ?1 AND t.i <= ?2",
        params![agents, turns],
    )?;
    connection.execute(
        "INSERT INTO events SELECT (SELECT max(seq) FROM events) + n.i, printf('agt_%017d', 1 + (n.i - 1) % ?1),
             1 + (n.i - 1) / ?1, told.at, told.kind, told.data
         FROM n JOIN told ON told.k = (n.i - 1) / ?1 % (SELECT count(*) FROM told) WHERE n.i <= ?2 ORDER BY n.i",
        params![agents, events],
    )?;
    connection.execute_batch(
        "DELETE FROM streams; INSERT INTO streams SELECT stream, max(stream_seq) FROM events GROUP BY stream;
         INSERT INTO streams SELECT '', max(seq) FROM events;
         COMMIT; PRAGMA wal_checkpoint(TRUNCATE);",
    )
}
