//! One agent tries everything that [`attack.py`](attack.py) knows, while another works beside it.

use std::fs;
use std::net::{IpAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::checked::CheckedClient;
use crate::targets::{CANARY, Targets};
use crate::world::{ApiWorld, is_root};

const ATTACK: &str = include_str!("attack.py");
const AGENTFILE: &str = "FROM scratch\nNAME burglar\nMODEL mock/m\nBIN python3 host:python3 \"tries\"\n\
    BIN sh host:sh \"a shell\"\nADD attack.py \"what it tries\"\n";
const VICTIM: &str =
    "FROM scratch\nNAME victim\nMODEL mock/m\nBIN sh host:sh \"a shell\"\nBIN sleep host:sleep \"waits\"\n";
const PARTS: [&str; 10] = [
    "files",
    "own_parts",
    "sockets",
    "processes",
    "kernel",
    "rights",
    "devices",
    "settings",
    "cgroups",
    "signals",
];
/// Host processes with smaller numbers could be mistaken for the sandbox's own.
const PID_MIN: i64 = 2_000;

#[tokio::test]
async fn nothing_that_an_agent_tries_with_the_hosts_network_succeeds() {
    nothing_succeeds("NETWORK host").await;
}

#[tokio::test]
async fn nothing_that_an_agent_tries_behind_a_list_succeeds() {
    nothing_succeeds("NETWORK a.example:443").await;
}

#[tokio::test]
async fn nothing_that_an_agent_tries_without_a_network_succeeds() {
    nothing_succeeds("NETWORK none").await;
}

#[tokio::test]
async fn a_hole_that_was_made_on_purpose_is_noticed() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let targets = Targets::plant();
    let hole = targets.secrets[0].parent().expect("a directory").to_owned();
    let mounts = json!([{"host": hole, "target": "/hole", "read_only": false}]);
    let scene = set(world, &mut api, targets, "NETWORK host", mounts).await;
    let inside = PathBuf::from("/hole");
    let mut given = scene.given();
    given["parts"] = json!(["files", "sockets"]);
    given["files"] = json!([inside.join("secret")]);
    given["sockets"] = json!([inside.join("docker.sock")]);
    given["fifos"] = json!([inside.join("fifo")]);
    let report = tried(&mut api, &scene, &given).await;
    let open: Vec<&str> = report.lines().filter(|line| line.contains("\tOPEN\t")).collect();
    for way in
        ["read ", "write to ", "change the mode of ", "change the times of ", "words into ", "connect to "]
    {
        assert!(open.iter().any(|line| line.starts_with(way)), "{way}: {report}");
    }
    let touched = scene.targets.touched().join("; ");
    assert!(touched.contains("dialled") && touched.contains("secret is another"), "{touched}");
}

/// A running daemon with two agents, and what lies around them.
struct AttackScene {
    world: ApiWorld,
    targets: Targets,
    burglar: Value,
    victim: Value,
    /// The process that the victim's tool left running, as the host sees it.
    sleeper: i64,
    /// At an address that is not the loopback, if there is one.
    server: TcpListener,
}

async fn nothing_succeeds(network: &str) {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let scene = set(world, &mut api, Targets::plant(), network, json!([])).await;
    let root = PathBuf::from(scene.burglar["root"].as_str().expect("a root"));
    let before = scene.alive();
    let report = tried(&mut api, &scene, &scene.given()).await;
    let attempts: Vec<Vec<&str>> = report.lines().map(|line| line.split('\t').collect()).collect();
    println!("{network}, as {}", if is_root() { "root" } else { "an ordinary user" });
    for row in attempts.iter().filter(|row| row.len() == 3) {
        println!("{:<7} {:<70} {}", row[1], row[0], row[2]);
    }
    let open: Vec<&Vec<&str>> = attempts.iter().filter(|row| row.len() == 3 && row[1] != "closed").collect();
    println!("{} attempts, {} not closed", attempts.len() - 1, open.len());
    assert!(open.is_empty(), "{open:#?}");
    assert_eq!(scene.targets.touched(), Vec::<String>::new());
    assert_eq!(scene.alive(), before, "who was alive and awake is so still");
    assert_eq!(scene.planted(&root), Vec::<PathBuf>::new());
    // All agents continue.
    for (agent, session) in [("victim", "s"), ("burglar", "b")] {
        assert!(api.answer(agent, session, "[[reply:well]]").await.contains("well"));
    }
}

/// Lets the burglar try, and returns what it says of each attempt.
async fn tried(api: &mut CheckedClient, scene: &AttackScene, given: &Value) -> String {
    let root = PathBuf::from(scene.burglar["root"].as_str().expect("a root"));
    fs::write(root.join("workspace/given"), given.to_string()).expect("a file");
    let call = json!(["/etc/data/attack.py", "given"]);
    let turn = api.say("burglar", "b", &format!("[[tool:python3|{call}]] [[reply:{{{{tool}}}}]]")).await;
    let report = fs::read_to_string(root.join("workspace/report")).unwrap_or_default();
    assert!(report.ends_with("over\n"), "it came to its end: {turn:#}\n{report}");
    report
}

async fn set(
    world: ApiWorld,
    api: &mut CheckedClient,
    targets: Targets,
    network: &str,
    mounts: Value,
) -> AttackScene {
    let agentfile = format!("{AGENTFILE}{network}\n");
    let dir = world.lodge.agent_dir("burglar", &agentfile, &[("attack.py", ATTACK)]);
    api.ok("agent/create", json!({"path": dir, "name": "burglar", "mounts": mounts})).await;
    let burglar = api.agent_is("burglar", "ready").await;
    api.ok("agent/create", json!({"content": VICTIM, "name": "victim"})).await;
    let victim = api.agent_is("victim", "ready").await;
    let script =
        format!("echo {CANARY} > note; echo {CANARY} > ../var/lib/note; sleep 31999 >/dev/null 2>&1 & echo");
    api.answer("victim", "s", &format!("[[tool:sh|{}]] [[reply:done]]", json!(["-c", script]))).await;
    let keeper = victim["pid"].as_i64().expect("a keeper");
    let sleeper = crate::world::family(i32::try_from(keeper).expect("a pid"))
        .into_iter()
        .find(|pid| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == b"sleep\x0031999\0"));
    let own = UdpSocket::bind("0.0.0.0:0")
        .and_then(|socket| socket.connect("192.0.2.1:9").and(socket.local_addr()));
    let own = own.map_or(IpAddr::from([127, 0, 0, 1]), |own| own.ip());
    let server = TcpListener::bind((own, 0)).expect("a socket");
    AttackScene {
        world,
        targets,
        burglar,
        victim,
        sleeper: sleeper.expect("the victim's process").into(),
        server,
    }
}

impl AttackScene {
    /// What the attack has to know.
    fn given(&self) -> Value {
        let home = self.world.lodge.home().canonicalize().expect("a state directory");
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let victim = PathBuf::from(text(&self.victim["root"]));
        let (own, other) = (text(&self.burglar["sandbox"]), text(&self.victim["sandbox"]));
        let mut files: Vec<PathBuf> = ["daemon.db", "credentials.json", "providers.yaml", "anchor.lock"]
            .map(|name| home.join(name))
            .into();
        files.extend(["workspace/note", "var/lib/note", "etc/agent.yaml"].map(|name| victim.join(name)));
        files.push(home.join("logs").join(format!("{}.log", text(&self.victim["id"]))));
        files.extend([&own, &other].map(|sandbox| home.join("run").join(sandbox).join("pid")));
        files.extend(self.targets.secrets.iter().cloned());
        let mut sockets = vec![home.join("lodge.sock")];
        sockets.extend([&own, &other].map(|sandbox| home.join("run").join(sandbox).join("k")));
        sockets.extend(self.targets.sockets.iter().cloned());
        let scoped = self.holds("landlock_scope");
        let is_host = self.burglar["network"]["mode"] == "host";
        let abstract_names = if scoped || !is_host { vec![self.targets.name.clone()] } else { Vec::new() };
        let pids = [self.daemon(), self.pid(&self.victim), self.pid(&self.burglar), self.sleeper];
        let dirs =
            [home.clone(), home.join("run"), home.join("agents"), victim.clone(), victim.join("workspace")];
        json!({
            "parts": PARTS,
            "canary": CANARY,
            "state": home,
            "files": files,
            "dirs": dirs,
            "names": [self.targets.name, text(&self.victim["id"])],
            "sockets": sockets,
            "fifos": self.targets.fifos(),
            "abstract": abstract_names,
            "dial": if is_host { json!([]) } else { self.dial() },
            "pids": pids.into_iter().filter(|pid| *pid > PID_MIN).collect::<Vec<_>>(),
            "guards_signals": is_root() || scoped,
            "terminals": [self.targets.terminal_path],
            "shared": self.targets.secrets,
            "shm_key": self.targets.shm_key,
        })
    }

    fn holds(&self, name: &str) -> bool {
        let layers = self.burglar["isolation"].as_array().expect("layers");
        layers.iter().any(|layer| layer["name"] == name && layer["in_force"] == true)
    }

    /// Servers of this host: the daemon, its model, and one at an address that is not the loopback.
    fn dial(&self) -> Value {
        let daemon = self.world.lodge.http_addr();
        let (host, port) = daemon.rsplit_once(':').expect("a port");
        let mock = self.world.mock.address();
        let far = self.server.local_addr().expect("an address");
        let port: u16 = port.parse().expect("a port");
        json!([[host, port], [mock.ip(), mock.port()], [far.ip(), far.port()], ["169.254.169.254", 80]])
    }

    fn daemon(&self) -> i64 {
        self.world.lodge.pid().expect("a daemon").into()
    }

    fn pid(&self, view: &Value) -> i64 {
        view["pid"].as_i64().expect("a pid")
    }

    /// Daemon, keepers, gate, runtimes and the victim's process, each with its start and whether it runs.
    fn alive(&self) -> Vec<(i64, String, bool)> {
        let mut pids = vec![self.daemon(), self.sleeper];
        for view in [&self.victim, &self.burglar] {
            let family = crate::world::family(i32::try_from(self.pid(view)).expect("a pid"));
            let stays = |pid: &i32| {
                let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                // The process that measures the disk starts and ends.
                let counts = name.trim() == "keeper-counts";
                !counts
                    && (line.starts_with("keeper\0")
                        || line.contains("bin/keeper-")
                        || line.contains("opt/lodge/runtime"))
            };
            pids.extend(family.into_iter().filter(stays).map(i64::from));
        }
        let state = |pid: i64| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
            let is_awake = !matches!(fields.first(), Some(&("T" | "Z" | "X")) | None);
            (pid, fields.get(19).map(|start| (*start).to_owned()).unwrap_or_default(), is_awake)
        };
        pids.into_iter().map(state).collect()
    }

    /// Names that an attempt would have left behind.
    fn planted(&self, root: &Path) -> Vec<PathBuf> {
        let home = self.world.lodge.home();
        let places =
            [home.clone(), home.join("run"), home.join("agents"), root.join("etc"), root.join("opt/bins")];
        let places = places
            .into_iter()
            .chain(["/etc", "/etc/cron.d", "/usr/bin", "/usr/local/bin"].map(PathBuf::from));
        let names = places.flat_map(|place| ["planted", "planted-dir"].map(|name| place.join(name)));
        names.filter(|path| fs::symlink_metadata(path).is_ok()).collect()
    }
}
