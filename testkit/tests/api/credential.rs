//! An agent's credential is the secret of its own link: out of reach, good for nothing else, and over with its process.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use lodge_link::{
    Assembler, ConnectionRefused, Hello, KeeperChallenge, KeeperSecret, NONCE_LEN, RefusalReason, VERSION,
    Welcome, daemon_proof,
};
use lodge_proto::hex;
use lodge_testkit::lodge::{Lodge, PATIENCE};
use rusqlite::Connection;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::auth::holding;
use crate::world::{ApiWorld, family, sh};

/// The secret of a sandbox's link, as the daemon makes it.
fn secret(lodge: &Lodge, view: &Value) -> [u8; 32] {
    let database = Connection::open(lodge.home().join("daemon.db")).expect("a database");
    let state_key: Vec<u8> = database
        .query_row("SELECT value FROM meta WHERE key = 'state-key'", [], |row| row.get(0))
        .expect("a key");
    let (sandbox, incarnation) =
        (view["sandbox"].as_str().expect("a sandbox"), view["incarnation"].to_string());
    let mut hash = Sha256::new();
    hash.update(b"lodge-derive-1");
    hash.update(state_key);
    for part in ["keeper", sandbox, incarnation.as_str()] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().into()
}

fn socket(lodge: &Lodge, view: &Value) -> std::path::PathBuf {
    lodge.home().join("run").join(view["sandbox"].as_str().expect("a sandbox")).join("k")
}

#[derive(Debug, PartialEq, Eq)]
enum HandshakeReply {
    Welcome,
    BadProof,
    /// Let in by its proof, and turned away for its age.
    OldEpoch,
}

/// Connects to a keeper with a secret and an epoch that replaces no daemon.
fn knock(socket: &Path, secret: [u8; 32]) -> HandshakeReply {
    let mut stream = UnixStream::connect(socket).expect("a keeper that listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut input = Assembler::default();
    let challenge = loop {
        if let Some(frame) = input.next_frame(lodge_link::limits::FRAME_MAX).expect("frames") {
            break KeeperChallenge::decode(frame).expect("a challenge").expect("a challenge");
        }
        read(&mut stream, &mut input);
    };
    let mut hello = Hello { version: VERSION, epoch: 0, nonce: [7; NONCE_LEN], proof: [0; 32] };
    hello.proof = daemon_proof(&KeeperSecret::new(secret), &challenge, &hello);
    let mut bytes = Vec::new();
    hello.append_to(&mut bytes);
    stream.write_all(&bytes).expect("a hello");
    loop {
        if let Some(frame) = input.next_frame(lodge_link::limits::FRAME_MAX).expect("frames") {
            if Welcome::decode(frame).expect("a frame").is_some() {
                return HandshakeReply::Welcome;
            }
            match ConnectionRefused::decode(frame).expect("a frame").expect("an answer").why {
                RefusalReason::BadProof => return HandshakeReply::BadProof,
                RefusalReason::OldEpoch { .. } => return HandshakeReply::OldEpoch,
                RefusalReason::TooManyWaiting => panic!("nobody else knocks"),
            }
        }
        read(&mut stream, &mut input);
    }
}

fn read(stream: &mut UnixStream, input: &mut Assembler) {
    let mut bytes = [0; 4096];
    let length = stream.read(&mut bytes).expect("an answer");
    assert!(length > 0, "the keeper hung up without a word");
    input.push(&bytes[..length]);
}

/// The ways in which a secret may be written down.
fn spellings(secret: [u8; 32]) -> Vec<Vec<u8>> {
    let hex = hex::encode(&secret);
    vec![secret.to_vec(), hex.to_uppercase().into_bytes(), hex.into_bytes()]
}

fn contains(bytes: &[u8], needle: &[u8]) -> bool {
    bytes.windows(needle.len()).any(|window| window == needle)
}

#[tokio::test]
async fn the_secret_of_a_link_opens_its_own_keeper_and_no_other() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let mut views = Vec::new();
    for name in ["one", "two"] {
        world.agent(&mut api, name).await;
        views.push(api.ok("agent/get", json!({"agent": name})).await);
    }
    let (one, two) = (secret(&world.lodge, &views[0]), secret(&world.lodge, &views[1]));
    let (at_one, at_two) = (socket(&world.lodge, &views[0]), socket(&world.lodge, &views[1]));
    assert_eq!(
        (knock(&at_one, one), knock(&at_two, two)),
        (HandshakeReply::OldEpoch, HandshakeReply::OldEpoch)
    );
    assert_eq!(
        (knock(&at_two, one), knock(&at_one, two)),
        (HandshakeReply::BadProof, HandshakeReply::BadProof)
    );
    // It is no token either.
    let hex = hex::encode(&one);
    let bearer = format!("Bearer {hex}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let body = lodge_testkit::lodge::rpc("info", &json!({}));
    let (status, _) =
        lodge_testkit::lodge::http(&world.lodge.http_addr(), "POST", "/v1/rpc", &headers, &body)
            .expect("an answer");
    assert_eq!(status, 401);
    // Both continue as if nothing had happened.
    assert_eq!(api.answer("one", "s", "[[reply:hi]]").await, "hi");
    assert_eq!(api.answer("two", "t", "[[reply:hi]]").await, "hi");
}

#[tokio::test]
async fn the_secret_of_a_link_ends_with_its_process() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "one").await;
    let before = api.ok("agent/get", json!({"agent": "one"})).await;
    let old = secret(&world.lodge, &before);
    api.ok("agent/stop", json!({"agent": "one"})).await;
    assert!(UnixStream::connect(socket(&world.lodge, &before)).is_err(), "nobody listens");
    api.ok("agent/start", json!({"agent": "one"})).await;
    let after = api.agent_is("one", "ready").await;
    assert_eq!(knock(&socket(&world.lodge, &after), old), HandshakeReply::BadProof);
    assert_eq!(knock(&socket(&world.lodge, &after), secret(&world.lodge, &after)), HandshakeReply::OldEpoch);
}

#[tokio::test]
async fn neither_the_runtime_nor_a_tool_can_see_the_secret_of_the_link() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let view = api.ok("agent/get", json!({"agent": agent})).await;
    let secret = secret(&world.lodge, &view);
    // Everything a tool can read about processes, descriptors included: as text, so that bytes survive the way here.
    let script = "for f in /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/[0-9]*/fd/* /proc/[0-9]*/mem; do \
         test -S $f || timeout 1 cat $f; done 2>/dev/null > all; ls -l /proc/[0-9]*/fd 2>/dev/null; echo end";
    let content = format!("{}BIN timeout host:timeout \"bound\"\n", crate::world::AGENTFILE);
    api.ok("agent/create", json!({"content": content, "name": "seeker"})).await;
    api.agent_is("seeker", "ready").await;
    let seeker = api.ok("agent/get", json!({"agent": "seeker"})).await;
    let own = self::secret(&world.lodge, &seeker);
    let listing = api.answer("seeker", "s", &format!("{} [[reply:{{{{tool}}}}]]", sh(script))).await;
    assert!(listing.contains("end"), "{listing}");
    let found = Path::new(seeker["root"].as_str().expect("a root")).join("workspace/all");
    let found = fs::read(&found).unwrap_or_else(|error| panic!("{}: {error}", found.display()));
    assert!(!found.is_empty(), "it saw at least itself");
    for spelling in [secret, own].into_iter().flat_map(spellings) {
        assert!(!contains(&found, &spelling), "a tool has read the secret");
    }
    // No descriptor of the keeper's is left in what it starts: pipes and files of its own, and no socket.
    assert!(!listing.contains("socket:"), "{listing}");
    for pid in world.lodge.keepers().into_iter().flat_map(family) {
        for part in ["environ", "cmdline"] {
            let bytes = fs::read(format!("/proc/{pid}/{part}")).unwrap_or_default();
            let clean =
                [secret, own].into_iter().flat_map(spellings).all(|spelling| !contains(&bytes, &spelling));
            assert!(clean, "{part} of {pid} has the secret");
        }
    }
    // Nor does it lie in a file: it is made from the state key whenever it is needed.
    for secret in [secret, own] {
        let hex = hex::encode(&secret);
        assert_eq!(holding(&world.lodge.home(), &hex), [""; 0]);
        assert_eq!(crate::auth::holding_bytes(&world.lodge.home(), &secret), [""; 0]);
    }
}
