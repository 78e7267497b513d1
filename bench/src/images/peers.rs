//! Who images are moved to, and who else moves them: the distribution's docker-registry and skopeo.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lodge_testkit::lodge::until;

use crate::table::BenchTable;

/// The directories in which a distribution puts programs.
const PROGRAM_DIRS: [&str; 2] = ["/usr/bin", "/usr/local/bin"];

#[derive(Debug)]
pub(crate) struct Peers {
    registry: Option<PathBuf>,
    pub(crate) skopeo: Option<Skopeo>,
}

impl Peers {
    /// Finds them, and says of each which version it is, or that it does not run.
    pub(crate) fn find(table: &mut BenchTable) -> Peers {
        let registry = find_tool("docker-registry", table);
        let skopeo = find_tool("skopeo", table).map(|program| Skopeo { program });
        for program in registry.iter().chain(skopeo.iter().map(|skopeo| &skopeo.program)) {
            table.note(&format!("beside {}", version(program)));
        }
        Peers { registry, skopeo }
    }

    /// A registry with nothing in it.
    pub(crate) fn registry(&self) -> Option<PeerRegistry> {
        self.registry.as_deref().map(PeerRegistry::start)
    }
}

fn find_tool(name: &str, table: &mut BenchTable) -> Option<PathBuf> {
    let path = PROGRAM_DIRS.iter().map(|dir| Path::new(dir).join(name)).find(|path| path.is_file());
    if path.is_none() {
        table.not_run(name, "it is not installed: run `make tools`");
    }
    path
}

fn version(program: &Path) -> String {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or("an unknown version").to_owned()
}

/// A registry on a port and in a directory of its own, gone with this.
#[derive(Debug)]
pub(crate) struct PeerRegistry {
    child: Child,
    pub(crate) host: String,
    _dir: tempfile::TempDir,
}

impl PeerRegistry {
    fn start(program: &Path) -> PeerRegistry {
        let dir =
            tempfile::Builder::new().prefix("lodge-registry-").tempdir().expect("a temporary directory");
        let (config, log) = (dir.path().join("config.yml"), dir.path().join("log"));
        let text = format!(
            "version: 0.1\nlog:\n  accesslog:\n    disabled: true\nstorage:\n  filesystem:\n    rootdirectory: {}\n\
             http:\n  addr: 127.0.0.1:0\n  secret: for-measurements\n",
            dir.path().join("data").display()
        );
        std::fs::write(&config, text).expect("a file");
        let child = Command::new(program)
            .arg("serve")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).expect("a file"))
            .spawn()
            .expect("docker-registry starts");
        let mut registry = PeerRegistry { child, host: String::new(), _dir: dir };
        registry.host = until("the registry listens", || {
            let told = std::fs::read_to_string(&log).expect("a log");
            let (address, _) = told.split_once("listening on ")?.1.split_once('"')?;
            Some(address.to_owned())
        });
        registry
    }
}

impl Drop for PeerRegistry {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[derive(Debug)]
pub(crate) struct Skopeo {
    program: PathBuf,
}

impl Skopeo {
    /// Copies an image with all its platforms, as it is.
    pub(crate) fn copy(&self, from: &str, to: &str) -> Duration {
        let mut command = Command::new(&self.program);
        command.args(["--insecure-policy", "copy", "--quiet", "--all", "--preserve-digests"]);
        command.args(["--src-tls-verify=false", "--dest-tls-verify=false", from, to]).stdin(Stdio::null());
        let since = Instant::now();
        let done = command.output().expect("skopeo runs");
        let took = since.elapsed();
        let told = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "skopeo from {from} to {to}: {told}");
        took
    }
}
