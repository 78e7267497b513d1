//! The machine loses power while a tool works: unsynced files of its keeper may be complete, torn or missing.
//!
//! Keepers sync nothing: their files guard against the death of processes, the database against power loss (its own
//! cuts are tried in the store's tests). So beneath `run/` any state of any file is possible after a cut, and here
//! those that matter are made by hand from a real one. The other boot is made by changing the boot that the intents
//! recorded: to a daemon that is the same as waking up in another one.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use lodge_proto::client::Client;
use lodge_testkit::lodge::{Lodge, PATIENCE, until};
use lodge_testkit::mock::MockLlm;
use rusqlite::Connection;
use serde_json::{Value, json};

const AGENTFILE: &str = "FROM scratch\nNAME tester\nMODEL mock/m\nBIN sh host:sh \"a shell\"\n\
                         BIN again host:sh safe \"a shell for what may be repeated\"\nBIN sleep host:sleep \"wait\"\n";
/// More than a few sectors, so that it can be torn in the middle.
const OUTPUT_LINES: usize = 500;

/// When the power goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PowerMoment {
    ToolRuns,
    /// The keeper wrote its record; no daemon read it.
    ToolEnded,
    /// The turn has ended and its end is published.
    TurnEnded,
}

/// How the tool's step must stand when the turn is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExpectedStep {
    /// Its own outcome, whole.
    Outcome,
    /// Its own outcome, and the result says that output is missing.
    WithoutOutput,
    /// Its own outcome, and the result says that output may have holes.
    Doubted,
    Unknown,
    /// It was declared safe: it ran again, and this time has an outcome.
    Repeated,
}

/// A state directory as the cut left it, to be put back before each try.
struct PowerCut {
    lodge: Lodge,
    mock: MockLlm,
    saved: PathBuf,
    agent: String,
    turn: String,
    exec_dir: PathBuf,
}

impl PowerCut {
    /// Lets an agent work with `tool` until the moment, then ends every process at once.
    async fn at(moment: PowerMoment, tool: &str) -> PowerCut {
        let mut lodge = Lodge::new();
        let home = lodge.home();
        fs::DirBuilder::new().mode(0o700).create(&home).expect("a state directory");
        let mock = MockLlm::spawn(lodge.dir()).expect("a provider");
        let provider = format!(
            "providers:\n  - name: mock\n    kind: openai\n    base-url: {}\n    api-key: k\n",
            mock.base_url()
        );
        let (file, private) = (home.join("providers.yaml"), fs::Permissions::from_mode(0o600));
        fs::write(&file, provider).and_then(|()| fs::set_permissions(file, private)).expect("a file");
        lodge.start();
        let mut client = lodge.client().await;
        let created = call(&mut client, "agent/create", json!({"content": AGENTFILE, "name": "one"})).await;
        let agent = text(&created["id"]);
        wait(&mut client, "agent/get", json!({"agent": agent}), |view| view["status"] == "ready").await;
        say(&mut client, &agent, "[[reply:first]]").await;
        let script = format!(
            "echo ran >> effects; n=0; while [ $n -lt {OUTPUT_LINES} ]; do n=$((n+1)); echo $n; done; until test -e go; do sleep 0.01; done; exit 3"
        );
        let message = format!("[[tool:{tool}|{}]] [[reply:last]]", json!(["-c", script]));
        let sent =
            call(&mut client, "turn/send", json!({"agent": agent, "session": "s", "text": message})).await;
        let turn = text(&sent["id"]);
        let workspace = home.join("agents").join(&agent).join("workspace");
        until("the tool runs", || (effects(&workspace) == 1).then_some(()));
        let exec_dir = exec_dir(&home);
        let output = exec_dir.join("stdout");
        until("its output is captured", || (fs::read(&output).ok()? == expected_output()).then_some(()));
        let go = || fs::write(workspace.join("go"), "").expect("a file");
        match moment {
            PowerMoment::ToolRuns => lodge.kill9(),
            PowerMoment::ToolEnded => {
                lodge.kill9();
                go();
                until("its end is recorded", || exec_dir.join("exit").exists().then_some(()));
            }
            PowerMoment::TurnEnded => {
                go();
                ended(&mut client, &turn).await;
                lodge.kill9();
            }
        }
        end_keepers(&lodge);
        // A repetition does not wait.
        go();
        let (this, other) = (this_boot(), |first| if first == "0" { "1" } else { "0" });
        set_boot(&home, &format!("{}{}", other(&this[..1]), &this[1..]));
        let saved = lodge.dir().join("saved");
        copy(&home, &saved);
        let exec_dir = exec_dir.strip_prefix(&home).expect("it lies beneath").to_owned();
        PowerCut { lodge, mock, saved, agent, turn, exec_dir }
    }

    /// Puts the directory back, tears it, starts a daemon and lets the turn end.
    async fn then(&mut self, what: &str, tear: impl FnOnce(&TearTarget), expected: ExpectedStep) {
        let home = self.lodge.home();
        // A keeper that was being started when its daemon was killed is seen a moment later.
        until("the last try can be removed", || {
            end_keepers(&self.lodge);
            fs::remove_dir_all(&home).ok()
        });
        copy(&self.saved, &home);
        let torn = TearTarget { exec: home.join(&self.exec_dir), home };
        tear(&torn);
        let before = self.mock.requests().expect("a log").len();
        self.lodge.start();
        let mut client = self.lodge.client().await;
        let turn = ended(&mut client, &self.turn).await;
        let page = call(&mut client, "session/messages", json!({"session": "s"})).await;
        self.lodge.kill9();
        end_keepers(&self.lodge);
        self.judge(what, &turn, &page, expected);
        let asked = self.mock.requests().expect("a log").len() - before;
        assert!(asked <= 2, "{what}: the model was asked {asked} times");
    }

    fn judge(&self, what: &str, turn: &Value, page: &Value, expected: ExpectedStep) {
        assert_eq!((&turn["status"], &turn["text"]), (&json!("done"), &json!("last")), "{what}: {turn:#}");
        let step = &turn["steps"][1];
        let messages = page["messages"].as_array().expect("messages");
        assert_eq!(messages[1]["text"], "first", "{what}: an answer that was told is gone");
        let result = messages.iter().find(|message| message["role"] == "tool").expect("a result");
        let result = text(&result["text"]);
        let workspace = self.lodge.home().join("agents").join(&self.agent).join("workspace");
        let whole = String::from_utf8(expected_output()).expect("digits");
        match expected {
            ExpectedStep::Outcome | ExpectedStep::Repeated => {
                assert_eq!(step["exit_code"], 3, "{what}: {step:#}");
                assert!(result.contains(whole.trim()), "{what}: a torn output is told as whole: {result}");
            }
            ExpectedStep::WithoutOutput => {
                assert_eq!(step["exit_code"], 3, "{what}: {step:#}");
                assert!(
                    result.contains("bytes left out"),
                    "{what}: a torn output is told as whole: {result}"
                );
            }
            ExpectedStep::Doubted => {
                assert_eq!(step["exit_code"], 3, "{what}: {step:#}");
                assert!(
                    result.contains("machine was restarted"),
                    "{what}: holes are told as output: {result}"
                );
            }
            ExpectedStep::Unknown => {
                assert_eq!(step["status"], "unknown", "{what}: {step:#}");
                assert!(result.contains("outcome unknown"), "{what}: {result}");
            }
        }
        let ran = effects(&workspace);
        match expected {
            // Files of the agent's own were not synced either.
            ExpectedStep::Outcome
            | ExpectedStep::WithoutOutput
            | ExpectedStep::Doubted
            | ExpectedStep::Unknown => {
                assert!(ran <= 1, "{what}: it ran {ran} times");
            }
            ExpectedStep::Repeated => assert_eq!(ran, 2, "{what}"),
        }
    }
}

/// How long a record is. The file is longer: it is the room that was taken for it, and what is behind it says nothing.
fn record_len(exec: &Path) -> u64 {
    let room = fs::read(exec.join("exit")).expect("a record");
    room.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1)
}

/// Where to tear.
struct TearTarget {
    home: PathBuf,
    /// The tool's own directory.
    exec: PathBuf,
}

impl TearTarget {
    fn cut(&self, file: &str, len: impl FnOnce(u64) -> u64) {
        let file = fs::File::options().write(true).open(self.exec.join(file)).expect("a file");
        let now = file.metadata().expect("a length").len();
        file.set_len(len(now)).expect("a length");
    }

    /// The file has its length and, from there on, none of its data.
    fn empty(&self, file: &str, from: usize) {
        let path = self.exec.join(file);
        let mut bytes = fs::read(&path).expect("a file");
        bytes[from..].fill(0);
        fs::write(path, bytes).expect("a file");
    }

    fn remove(&self, file: &str) {
        fs::remove_file(self.exec.join(file)).expect("a file");
    }

    fn remove_dir(&self, beneath: &str) {
        fs::remove_dir_all(self.home.join(beneath)).expect("a directory");
    }

    /// Every file that keepers use beside the records, of every sandbox.
    fn keepers_files(&self) -> Vec<PathBuf> {
        let boxes = fs::read_dir(self.home.join("run")).expect("run").flatten();
        boxes
            .flat_map(|one| fs::read_dir(one.path()).expect("a sandbox").flatten())
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
            .map(|entry| entry.path())
            .collect()
    }
}

#[tokio::test]
async fn a_record_is_taken_whole_or_not_at_all() {
    let mut cut = PowerCut::at(PowerMoment::ToolEnded, "sh").await;
    cut.then("all arrived", |_| {}, ExpectedStep::Outcome).await;
    let len = record_len(&cut.saved.join(&cut.exec_dir));
    for kept in [0, 1, len / 2, len - 1] {
        cut.then("the record is short", |torn| torn.cut("exit", |_| kept), ExpectedStep::Unknown).await;
    }
    cut.then("the record is zeros", |torn| torn.empty("exit", 0), ExpectedStep::Unknown).await;
    cut.then("the record ends in zeros", |torn| torn.empty("exit", 8), ExpectedStep::Unknown).await;
    cut.then("the record has no name", |torn| torn.remove("exit"), ExpectedStep::Unknown).await;
    let under_its_first_name =
        |torn: &TearTarget| fs::rename(torn.exec.join("exit"), torn.exec.join("exit.new")).expect("a file");
    cut.then("the record has its first name", under_its_first_name, ExpectedStep::Unknown).await;
}

#[tokio::test]
async fn an_outcome_whose_output_did_not_arrive_says_so() {
    let mut cut = PowerCut::at(PowerMoment::ToolEnded, "sh").await;
    cut.then("the output is short", |torn| torn.cut("stdout", |_| 512), ExpectedStep::WithoutOutput).await;
    cut.then("the output is empty", |torn| torn.cut("stdout", |_| 0), ExpectedStep::WithoutOutput).await;
    cut.then("the output has no name", |torn| torn.remove("stdout"), ExpectedStep::WithoutOutput).await;
    cut.then("the output has holes", |torn| torn.empty("stdout", 512), ExpectedStep::Doubted).await;
}

#[tokio::test]
async fn nothing_is_repeated_when_the_claim_did_not_arrive() {
    for moment in [PowerMoment::ToolRuns, PowerMoment::ToolEnded] {
        let mut cut = PowerCut::at(moment, "sh").await;
        let exec = cut.exec_dir.clone();
        cut.then(
            "all of the claim",
            |_| {},
            if moment == PowerMoment::ToolRuns { ExpectedStep::Unknown } else { ExpectedStep::Outcome },
        )
        .await;
        let gone = |torn: &TearTarget| fs::remove_dir_all(torn.home.join(&exec)).expect("a directory");
        cut.then("no claim", gone, ExpectedStep::Unknown).await;
        let empty = |torn: &TearTarget| {
            gone(torn);
            fs::create_dir(&torn.exec).expect("a directory");
        };
        cut.then("an empty claim", empty, ExpectedStep::Unknown).await;
        cut.then("no sandbox", |torn| torn.remove_dir("run"), ExpectedStep::Unknown).await;
        cut.then("no log", |torn| torn.remove_dir("logs"), found(moment)).await;
        // The workspace goes with it, and so does the evidence of how often it ran; the turn still ends.
        cut.then("no files of agents", |torn| torn.remove_dir("agents"), found(moment)).await;
    }
}

/// What the other tests must never see: with the boot of the intent, a missing claim proves that nothing ran.
#[tokio::test]
async fn a_repeated_effect_would_be_noticed() {
    let mut cut = PowerCut::at(PowerMoment::ToolEnded, "sh").await;
    let same_boot_without_claim = |torn: &TearTarget| {
        set_boot(&torn.home, &this_boot());
        torn.remove_dir("run");
    };
    cut.then("the same boot and no claim", same_boot_without_claim, ExpectedStep::Repeated).await;
}

#[tokio::test]
async fn what_is_declared_safe_runs_again_when_its_outcome_did_not_arrive() {
    let mut cut = PowerCut::at(PowerMoment::ToolEnded, "again").await;
    cut.then("all arrived", |_| {}, ExpectedStep::Outcome).await;
    let half = |torn: &TearTarget| torn.cut("exit", |_| record_len(&torn.exec) / 2);
    cut.then("the record is short", half, ExpectedStep::Repeated).await;
    cut.then("no sandbox", |torn| torn.remove_dir("run"), ExpectedStep::Repeated).await;
}

#[tokio::test]
async fn an_outcome_that_was_stored_needs_no_file() {
    let mut cut = PowerCut::at(PowerMoment::TurnEnded, "sh").await;
    cut.then("all arrived", |_| {}, ExpectedStep::Outcome).await;
    cut.then("no sandbox", |torn| torn.remove_dir("run"), ExpectedStep::Outcome).await;
    cut.then("no programs", |torn| torn.remove_dir("bin"), ExpectedStep::Outcome).await;
}

#[tokio::test]
async fn files_of_a_keeper_that_is_gone_may_hold_anything() {
    let mut cut = PowerCut::at(PowerMoment::ToolRuns, "sh").await;
    let every =
        |torn: &TearTarget, change: fn(&Path)| torn.keepers_files().iter().for_each(|path| change(path));
    let empty = |path: &Path| fs::write(path, "").expect("a file");
    let zeros = |path: &Path| fs::write(path, [0; 512]).expect("a file");
    let gone = |path: &Path| fs::remove_file(path).expect("a file");
    cut.then("they are empty", |torn| every(torn, empty), ExpectedStep::Unknown).await;
    cut.then("they are zeros", |torn| every(torn, zeros), ExpectedStep::Unknown).await;
    cut.then("they are gone", |torn| every(torn, gone), ExpectedStep::Unknown).await;
}

/// Programs and credentials are synced before they get their name; until then they have another.
#[tokio::test]
async fn what_is_half_written_is_never_run_nor_believed() {
    let mut cut = PowerCut::at(PowerMoment::ToolRuns, "sh").await;
    let programs = |torn: &TearTarget, change: &dyn Fn(&Path)| {
        let all = fs::read_dir(torn.home.join("bin")).expect("bin").flatten().map(|entry| entry.path());
        all.for_each(|path| change(&path));
    };
    let unnamed = |path: &Path| {
        let bytes = fs::read(path).expect("a program");
        fs::remove_file(path).expect("a program");
        fs::write(path.with_file_name(".new-1-0"), &bytes[..bytes.len() / 2]).expect("half a program");
    };
    cut.then("half a program without its name", |torn| programs(torn, &unnamed), ExpectedStep::Unknown).await;
    let short = |path: &Path| {
        let bytes = fs::read(path).expect("a program");
        fs::remove_file(path).expect("a program");
        fs::write(path, &bytes[..bytes.len() / 2]).expect("half a program");
    };
    cut.then("half a program", |torn| programs(torn, &short), ExpectedStep::Unknown).await;
    let credentials = |torn: &TearTarget| {
        fs::remove_file(torn.home.join("credentials.json")).expect("credentials");
        fs::write(torn.home.join(".credentials.json.new"), "{\"tok").expect("half of them");
    };
    cut.then("half the credentials", credentials, ExpectedStep::Unknown).await;
    let lock = |torn: &TearTarget| fs::write(torn.home.join("anchor.lock"), [0; 512]).expect("a lock");
    cut.then("a lock that says nothing", lock, ExpectedStep::Unknown).await;
}

/// The expected step if all files are complete.
fn found(moment: PowerMoment) -> ExpectedStep {
    match moment {
        PowerMoment::ToolRuns => ExpectedStep::Unknown,
        PowerMoment::ToolEnded | PowerMoment::TurnEnded => ExpectedStep::Outcome,
    }
}

fn expected_output() -> Vec<u8> {
    (1..=OUTPUT_LINES).map(|line| format!("{line}\n")).collect::<String>().into_bytes()
}

/// How often the tool had its effect.
fn effects(workspace: &Path) -> usize {
    fs::read_to_string(workspace.join("effects")).map_or(0, |text| text.lines().count())
}

fn exec_dir(home: &Path) -> PathBuf {
    let (sandbox, exec): (String, String) = Connection::open(home.join("daemon.db"))
        .and_then(|database| {
            let of = "SELECT sandbox, exec FROM steps JOIN turns ON turns.id = steps.turn \
                      JOIN agents ON agents.id = turns.agent WHERE exec IS NOT NULL";
            database.query_row(of, [], |row| Ok((row.get(0)?, row.get(1)?)))
        })
        .expect("an intent");
    home.join("run").join(sandbox).join("exec").join(exec)
}

fn this_boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot").trim().to_owned()
}

/// Makes the intent one of that boot.
fn set_boot(home: &Path, boot: &str) {
    let database = Connection::open(home.join("daemon.db")).expect("a database");
    let (step, mut request): (String, Vec<u8>) = database
        .query_row("SELECT id, request FROM steps WHERE request IS NOT NULL", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .expect("an intent");
    // Boots differ in their first digit here, and in nothing else.
    let rest = &boot.as_bytes()[1..];
    let at = request.windows(rest.len()).position(|part| part == rest).expect("it names its boot");
    request[at - 1] = boot.as_bytes()[0];
    database.execute("UPDATE steps SET request = ?2 WHERE id = ?1", (step, request)).expect("a change");
}

fn end_keepers(lodge: &Lodge) {
    for pid in lodge.keepers() {
        // One that ended by itself meanwhile is gone, too.
        // SAFETY: sending a signal touches no memory; the pid is of a keeper that this test's daemon started.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
    until("the keepers are gone", || lodge.keepers().is_empty().then_some(()));
}

/// With owners and modes.
fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp");
    assert!(status.success(), "{status}");
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}

async fn call(client: &mut Client, method: &str, params: Value) -> Value {
    client
        .call_value(method, params.clone())
        .await
        .unwrap_or_else(|error| panic!("{method} {params}: {error:?}"))
}

async fn wait(client: &mut Client, method: &str, params: Value, wanted: impl Fn(&Value) -> bool) -> Value {
    let end = std::time::Instant::now() + PATIENCE;
    loop {
        let answer = call(client, method, params.clone()).await;
        if wanted(&answer) {
            return answer;
        }
        assert!(std::time::Instant::now() < end, "{method} {params} still gives {answer:#}");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

async fn ended(client: &mut Client, turn: &str) -> Value {
    wait(client, "turn/get", json!({"turn": turn}), |turn| !turn["ended_at"].is_null()).await
}

async fn say(client: &mut Client, agent: &str, message: &str) {
    let sent = call(client, "turn/send", json!({"agent": agent, "session": "s", "text": message})).await;
    let turn = ended(client, &text(&sent["id"])).await;
    assert_eq!(turn["status"], "done", "{turn:#}");
}
