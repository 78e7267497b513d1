//! An agent goes to a registry and runs on a host that has none of its tools.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use lodge_testkit::lodge::{Lodge, until};

use crate::set::{example, stocked};

/// Debian's registry on a port of its own, gone with this.
struct Registry {
    child: Child,
    address: String,
}

impl Registry {
    fn started(dir: &Path) -> Registry {
        let (config, log) = (dir.join("registry.yml"), dir.join("registry.log"));
        let data = dir.join("registry");
        let text = format!(
            "version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: 127.0.0.1:0\n",
            data.display()
        );
        std::fs::write(&config, text).expect("a file");
        let child = Command::new("docker-registry")
            .arg("serve")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).expect("a file"))
            .spawn()
            .expect("docker-registry starts: `make tools` installs it");
        let mut registry = Registry { child, address: String::new() };
        registry.address = until("the registry listens", || {
            let told = std::fs::read_to_string(&log).expect("a log");
            let (_, after) = told.split_once("listening on ")?;
            let (address, _) = after.split_once('"')?;
            Some(address.to_owned())
        });
        registry
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn an_example_that_was_pushed_runs_with_its_tools_where_nothing_of_it_was() {
    let here = stocked();
    let registry = Registry::started(here.dir());
    let name = format!("{}/demo/coder:v1", registry.address);
    let digest = here.cli_ok(["image", "build", &example("coder"), "-t", &name]);
    assert_eq!(here.cli_ok(["image", "push", &name]), digest);
    let there = Lodge::started();
    assert_eq!(there.cli_ok(["bin", "ls", "-q"]), "");
    let answer = there.cli_ok(["run", &name, "make the tests pass"]);
    assert!(answer.contains("all tests pass") && !answer.contains("WRONG"), "{answer}");
    // Called by its NAME, and so is a second one, with a number.
    there.cli_ok(["run", &name, "-d"]);
    let names = there.cli_ok(["ps"]);
    assert!(names.contains("coder ") && names.contains("coder-2"), "{names}");
}

#[test]
fn an_archive_carries_an_example_with_its_tools() {
    let (here, there) = (stocked(), Lodge::started());
    let archive = here.dir().join("researcher.tar");
    here.cli_ok(["image", "build", &example("researcher")]);
    here.cli_ok([
        "image".as_ref(),
        "export".as_ref(),
        "researcher".as_ref(),
        "-o".as_ref(),
        archive.as_os_str(),
    ]);
    there.cli_ok(["image".as_ref(), "import".as_ref(), "--yes".as_ref(), archive.as_os_str()]);
    let answer = there.cli_ok(["run", "researcher", "agreement"]);
    assert!(answer.contains("by: Lamport"), "{answer}");
}
