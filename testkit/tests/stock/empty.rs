//! Nothing but the program itself: no library, no shell, no `/etc`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use lodge_proto::base64;
use lodge_testkit::lodge::{Lodge, pause};

use crate::set::{ASKS, ToolQuestion, stocked, unpacked};

/// A Docker Engine is several programs, which a busy machine takes its time to start.
const STARTS_WITHIN: Duration = Duration::from_secs(120);

fn is_root() -> bool {
    // SAFETY: geteuid only reads a property of the process.
    unsafe { libc::geteuid() == 0 }
}

/// A program of the host, without what the tests have in their environment.
fn bare(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    command
}

fn asked(mut command: Command, ask: &ToolQuestion) -> Output {
    let mut child = command
        .args(ask.args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    // A program that reads nothing may be gone already.
    drop(stdin.write_all(ask.stdin.as_bytes()));
    drop(stdin);
    child.wait_with_output().expect("our child")
}

fn answered(ask: &ToolQuestion, output: &Output) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(
        output.status.success() && out.contains(ask.answer),
        "{}: {}\n{out}\n{err}",
        ask.tool,
        output.status
    );
}

#[test]
fn every_tool_runs_in_a_root_where_nothing_else_is() {
    let lodge = Lodge::new();
    let programs = unpacked(lodge.dir());
    for ask in &ASKS {
        let root = lodge.dir().join(format!("only-{}", ask.tool));
        std::fs::create_dir(&root).expect("a directory");
        // No copy: a process that another test begins would have it open for writing, and it could not be run.
        std::fs::hard_link(programs.join(ask.tool), root.join(ask.tool)).expect("a program");
        let mut command = bare("unshare");
        if !is_root() {
            command.arg("--map-root-user");
        }
        command.arg("--mount").arg(format!("--root={}", root.display())).arg(format!("/{}", ask.tool));
        answered(ask, &asked(command, ask));
    }
}

/// A Docker Engine of its own, gone with this.
struct Docker {
    engine: Child,
    dir: PathBuf,
}

impl Docker {
    fn started(dir: &Path) -> Docker {
        let dir = dir.join("docker");
        std::fs::create_dir(&dir).expect("a directory");
        let log = std::fs::File::create(dir.join("log")).expect("a file");
        let engine = bare("dockerd")
            .args(["--iptables=false", "--ip6tables=false", "--bridge=none", "--storage-driver=vfs"])
            .arg(format!("--host=unix://{}", dir.join("sock").display()))
            .arg(format!("--pidfile={}", dir.join("pid").display()))
            .arg(format!("--data-root={}", dir.join("data").display()))
            .arg(format!("--exec-root={}", dir.join("exec").display()))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file"))
            .stderr(log)
            .spawn()
            .expect("dockerd starts: `make tools` installs it");
        let mut docker = Docker { engine, dir };
        let end = Instant::now() + STARTS_WITHIN;
        while !docker.command(&["version"]).output().expect("docker runs").status.success() {
            if let Some(status) = docker.engine.try_wait().expect("our child") {
                panic!("dockerd ended: {status}\n{}", docker.log());
            }
            assert!(Instant::now() < end, "Docker does not answer:\n{}", docker.log());
            pause();
        }
        docker
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = bare("docker");
        command
            .arg(format!("--config={}", self.dir.display()))
            .arg(format!("--host=unix://{}", self.dir.join("sock").display()))
            .args(args);
        command
    }

    /// As `docker login` would.
    fn log_in(&self, registry: &str, token: &str) {
        let auth = base64::encode(format!("lodge:{token}").as_bytes());
        let config = serde_json::json!({"auths": {registry: {"auth": auth}}});
        std::fs::write(self.dir.join("config.json"), config.to_string()).expect("a file");
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        // SAFETY: sending a signal touches no memory; the pid is our child's, which is not collected yet.
        unsafe { libc::kill(self.engine.id().cast_signed(), libc::SIGTERM) };
        drop(self.engine.wait());
    }
}

#[test]
fn every_tool_runs_in_an_empty_container_of_docker() {
    if !is_root() {
        // Docker Engine is root's; what an ordinary user can check is checked above.
        return;
    }
    let lodge = Lodge::new();
    let programs = unpacked(lodge.dir());
    let docker = Docker::started(lodge.dir());
    for ask in &ASKS {
        let alone = lodge.dir().join(format!("{}.tar", ask.tool));
        let mut tar = bare("tar");
        tar.arg("-C").arg(&programs).arg("-cf").arg(&alone).arg(ask.tool);
        assert!(tar.status().expect("tar runs").success());
        let entry = format!("ENTRYPOINT [\"/{}\"]", ask.tool);
        let made = docker.command(&["import", "-c", &entry]).arg(&alone).arg(ask.tool).output();
        let made = made.expect("docker runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        answered(ask, &asked(docker.command(&["run", "--rm", "-i", "--network=none", ask.tool]), ask));
    }
}

#[test]
fn docker_pulls_every_tool_from_a_lodge_and_runs_it_in_an_empty_container() {
    if !is_root() {
        // Docker Engine is root's; what an ordinary user can check is checked above.
        return;
    }
    let lodge = stocked();
    let docker = Docker::started(lodge.dir());
    docker.log_in(&lodge.http_addr(), &lodge.token());
    for ask in &ASKS {
        let image = format!("{}/stock/{}:latest", lodge.http_addr(), ask.tool);
        let pulled = docker.command(&["pull", "-q", &image]).output().expect("docker runs");
        assert!(pulled.status.success(), "{}\n{}", String::from_utf8_lossy(&pulled.stderr), lodge.log());
        answered(ask, &asked(docker.command(&["run", "--rm", "-i", "--network=none", &image]), ask));
    }
}
