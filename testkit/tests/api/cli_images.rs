//! Images and tools on the command line: built here, pushed to a registry, pulled on another host.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lodge_testkit::lodge::Lodge;
use lodge_testkit::registry::{FaultCount, MockRegistry, RegistryFault};
use serde_json::Value;

use crate::terminal::{TerminalSession, terminal};
use crate::world::{ApiWorld, kill};

const PLATFORM: &str = if cfg!(target_arch = "aarch64") { "linux/arm64" } else { "linux/amd64" };

fn agentfile(more: &str) -> String {
    format!("FROM scratch\nNAME otter\nMODEL mock/m\nCONTEXT SOUL <<EOF\nBe kind.\nBe short.\nEOF\n{more}")
}

/// A program that prints a text, in a file of the test.
fn program(lodge: &Lodge, name: &str, says: &str) -> PathBuf {
    let path = lodge.dir().join(name);
    fs::write(&path, format!("#!/bin/sh\necho {says}\n")).expect("a file");
    path
}

/// A tool and an agent that uses it, both under their own names.
fn built(world: &ApiWorld) -> (String, String) {
    let tool = program(&world.lodge, "tool", "hello from the tool");
    let place = format!("{PLATFORM}:{}", tool.display());
    let bin = world.lodge.cli_ok(["bin", "build", "greet", &place, "--description", "Greets"]);
    let dir = world.lodge.agent_dir("otter", &agentfile("BIN greet greet:latest \"Greets\"\n"), &[]);
    let image = world.lodge.cli_ok(["image", "build", dir.to_str().expect("UTF-8")]);
    (bin.trim().to_owned(), image.trim().to_owned())
}

fn files(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("a directory").flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn an_image_is_built_named_looked_at_and_removed() {
    let world = ApiWorld::new();
    let dir = world.lodge.agent_dir("otter", &agentfile("BIN sh host:sh \"a shell\"\n"), &[]);
    let dir = dir.to_str().expect("UTF-8");
    let (code, digest, words) = world.cli(&["image", "build", dir, "-t", "a:v1", "-t", "b"]);
    assert_eq!((code, words.as_str()), (0, "built a:v1, b:latest\n"));
    let digest = digest.trim();
    let (code, same, words) = world.cli(&["image", "tag", "a:v1", "c", "registry.example/team/c:v2"]);
    assert_eq!((code, same.trim(), words.as_str()), (0, digest, "tagged c, registry.example/team/c:v2\n"));
    let listed = world.lodge.cli_ok(["image", "ls"]);
    let names: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["REF", "a:v1", "b:latest", "c:latest", "registry.example/team/c:v2"]);
    assert_eq!(world.lodge.cli_ok(["image", "ls", "-q"]).trim(), digest);
    assert_eq!(world.cli_json(&["image", "ls", "--json"])[0]["refs"].as_array().map(Vec::len), Some(4));
    let text = world.lodge.cli_ok(["image", "inspect", "b"]);
    assert!(text.contains("sh host:sh (this host only)"), "{text}");
    assert!(text.contains("no: sh is a program of this host"), "{text}");
    assert_eq!(world.cli_json(&["image", "inspect", "b", "--json"])["portable"], false);
    let (code, gone, _) = world.cli(&["image", "rm", "a:v1", "b", "nothing"]);
    assert_eq!((code, gone.as_str()), (1, "a:v1\nb:latest\n"));
    let (code, _, words) = world.cli(&["image", "tag", "nothing", "x"]);
    assert_eq!(code, 1);
    assert!(words.starts_with("error: ") && words.contains("\nhint: "), "{words}");
}

#[tokio::test]
async fn a_difference_tells_permissions_and_tools_first_and_texts_by_line() {
    let world = ApiWorld::new();
    let build = |name: &str, agentfile: &str| {
        let dir = world.lodge.agent_dir(name, agentfile, &[]);
        world.lodge.cli_ok(["image", "build", dir.to_str().expect("UTF-8"), "-t", name]).trim().to_owned()
    };
    build("one", &agentfile("LABEL k=v\nBIN sh host:sh \"a shell\"\n"));
    build(
        "two",
        &agentfile("NETWORK none\nBIN cat host:cat \"files\"\n").replace("Be short.", "Be long.\nBe brave."),
    );
    let (code, text, _) = world.cli(&["image", "diff", "one", "two"]);
    assert_eq!(code, 0);
    let at = |wanted: &str| text.find(wanted).unwrap_or_else(|| panic!("no {wanted:?} in {text}"));
    let order = [
        "network\n  ~ public → none\n",
        "\n\nbins\n  ",
        "\n\ncontexts\n  ~ SOUL\n      Be kind.\n    - Be short.\n    + Be long.\n    + Be brave.\n",
        "\nlabels\n  - k v\n",
    ];
    assert!(order.windows(2).all(|pair| at(pair[0]) < at(pair[1])), "{text}");
    assert!(text.contains("\n  - sh ") && text.contains("\n  + cat "), "{text}");
    let diff = world.cli_json(&["image", "diff", "one", "two", "--json"]);
    assert_eq!(diff["changes"][0]["section"], "network");
    let (code, text, words) = world.cli(&["image", "diff", "one", "one"]);
    assert_eq!((code, text.as_str(), words.as_str()), (0, "", "it is the same image\n"));
}

#[tokio::test]
async fn a_tool_is_built_from_relative_paths_and_described_from_stdin() {
    let world = ApiWorld::new();
    program(&world.lodge, "odd:name", "amd");
    program(&world.lodge, "arm", "arm");
    let args =
        ["bin", "build", "greet", "linux/amd64:odd:name", "linux/arm/v7:./arm", "--usage", "-", "--json"];
    let mut command = world.lodge.cli_command(args);
    command.current_dir(world.lodge.dir()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("lodge");
    child.stdin.take().expect("stdin").write_all(b"# greet\n\nSays hello.\n").expect("a usage");
    let output = child.wait_with_output().expect("an end");
    assert!(output.status.success());
    let bin: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(bin["platforms"], serde_json::json!(["linux/amd64", "linux/arm/v7"]));
    // The build warns about tools that cannot run here and programs that need other files.
    let script = program(&world.lodge, "script", "x");
    let elsewhere = format!("windows/amd64:{}", script.display());
    let (code, _, words) = world.cli(&["bin", "build", "else", &elsewhere, "-t", "else:v1"]);
    assert_eq!(code, 0, "{words}");
    assert!(words.starts_with("built else:v1 for windows/amd64\nit does not run on this host: "), "{words}");
    assert!(words.contains("is a script: it needs `/bin/sh` where it runs"), "{words}");
    // The names that were given, and not those that it had.
    let (_, _, words) = world.cli(&["bin", "build", "else", &elsewhere, "-t", "else:v2"]);
    assert!(words.starts_with("built else:v2 for "), "{words}");
    let (code, _, words) = world.cli(&["bin", "rm", "else"]);
    assert!(code == 1 && words.contains("hint: there is `else:v1`, `else:v2`"), "{words}");
    let slip = format!("linux/amd46:{}", script.display());
    let (code, _, words) = world.cli(&["bin", "build", "slip", &slip]);
    assert!(code == 1 && words.contains("did you mean `amd64`?"), "{words}");
    assert_eq!(world.cli(&["bin", "rm", "else:v1", "else:v2"]).0, 0);
    let listed = world.lodge.cli_ok(["bin", "ls"]);
    let header: Vec<&str> = listed.lines().next().expect("a header").split_whitespace().collect();
    assert_eq!(header, ["REF", "NAME", "PLATFORMS", "SIZE", "USED", "DESCRIPTION"]);
    assert!(listed.contains("\ngreet:latest   greet   linux/amd64,linux/arm/v7"), "{listed}");
    assert_eq!(world.lodge.cli_ok(["bin", "ls", "-q"]).trim(), bin["digest"].as_str().expect("a digest"));
    let text = world.lodge.cli_ok(["bin", "inspect", "greet"]);
    assert!(text.ends_with("usage\n  # greet\n\n  Says hello.\n"), "{text}");
    assert_eq!(world.lodge.cli_ok(["bin", "rm", "greet"]), "greet:latest\n");
    assert_eq!(world.cli_json(&["bin", "ls", "--json"]), serde_json::json!([]));
    for args in [vec!["bin", "build", "x", "linux/amd64:/no/such/file"], vec!["bin", "inspect", "nothing"]] {
        let (code, out, words) = world.cli(&args);
        assert_ne!(code, 0);
        assert!(out.is_empty() && words.starts_with("error: "), "{words}");
    }
}

#[tokio::test]
async fn an_agent_runs_from_a_registry_on_a_host_that_never_saw_its_tools() {
    let (here, there) = (ApiWorld::new(), ApiWorld::new());
    let registry = MockRegistry::start().expect("a registry");
    let reference = format!("{}/team/otter:v1", registry.host());
    let (bin, image) = built(&here);
    let (code, digest, words) = here.cli(&["image", "push", "otter", &reference]);
    assert_eq!((code, digest.trim()), (0, image.as_str()), "{words}");
    let lines: Vec<&str> = words.lines().collect();
    assert_eq!(lines[0], format!("pushing {reference}"));
    assert!(lines[1].starts_with(&format!("pushed {reference}: ")) && lines[1].ends_with(" sent"), "{words}");
    assert_eq!(lines.len(), 2, "{words}");
    let (_, _, words) = here.cli(&["image", "push", "otter", &reference]);
    assert!(words.ends_with(" B sent\n"), "no more than what names it: {words}");
    // Machine-readable output has no progress.
    for quiet in ["-q", "--json"] {
        let (code, _, words) = there.cli(&["image", "pull", &reference, quiet]);
        assert_eq!((code, words.as_str()), (0, ""));
        there.lodge.cli_ok(["image", "rm", &reference]);
    }
    let (code, out, words) = there.cli(&["run", &reference, "[[tool:greet|[]]] [[reply:done]]"]);
    assert_eq!((code, out.as_str()), (0, "done\n"), "{words}");
    assert!(words.contains(&format!("pulling {reference}\n")), "{words}");
    assert!(words.contains(&format!("pulled {reference}: ")), "{words}");
    assert_eq!(there.lodge.cli_ok(["bin", "ls", "-q"]).trim(), bin);
    // The second one finds everything here.
    let (code, out, words) = there.cli(&["run", &reference]);
    assert_eq!((code, out.split(' ').next()), (0, Some("otter-2")), "{words}");
    assert!(!words.contains("pulling otter") && !words.contains("pulled"), "{words}");
    let (code, digest, words) = there.cli(&["image", "pull", &reference, "-t", "mine"]);
    assert_eq!((code, digest.trim()), (0, image.as_str()));
    assert!(words.contains(&format!("{reference} is up to date\n")), "{words}");
    assert!(there.lodge.cli_ok(["image", "ls"]).contains("\nmine:latest "));
}

#[tokio::test]
async fn what_is_neither_a_directory_nor_an_image_is_reported_with_what_to_do() {
    let world = ApiWorld::new();
    let registry = MockRegistry::start().expect("a registry");
    let (code, _, words) = world.cli(&["run", "exmaples/hello"]);
    assert_eq!(code, 1);
    assert!(
        words.starts_with(
            "error: there is no directory or Agentfile `exmaples/hello`, and no image of that name\n"
        ),
        "{words}"
    );
    assert!(words.contains("\nhint: give a directory with an Agentfile"), "{words}");
    let reference = format!("{}/team/nothing:v1", registry.host());
    for verb in [vec!["run", &reference], vec!["image", "pull", &reference]] {
        let (code, _, words) = world.cli(&verb);
        assert_eq!(code, 1, "{words}");
        assert!(words.contains(&format!("error: `{reference}` is not in its registry")), "{words}");
        assert!(words.contains("\nhint: ") && !words.contains("directory"), "{words}");
    }
    assert!(world.lodge.cli_ok(["ps", "-a", "-q"]).is_empty());
}

#[tokio::test]
async fn an_archive_carries_images_and_tools_and_is_there_whole_or_not_at_all() {
    let (here, there) = (ApiWorld::new(), ApiWorld::new());
    let (bin, image) = built(&here);
    let dir = here.lodge.dir().join("out");
    fs::create_dir(&dir).expect("a directory");
    let file = dir.join("otter.tar");
    let path = file.to_str().expect("UTF-8");
    let (code, out, words) = here.cli(&["image", "export", "otter", "-o", path]);
    assert_eq!((code, out.as_str()), (0, ""), "{words}");
    assert!(words.contains(&format!("exported otter to {path}: ")), "{words}");
    assert_eq!(files(&dir), ["otter.tar"]);
    let (code, _, words) = here.cli(&["image", "export", "otter", "nothing", "-o", path]);
    assert_eq!(code, 1);
    assert!(words.contains("nothing") && files(&dir) == ["otter.tar"], "{words}");
    let told = here.cli_json(&["image", "export", "otter", "-o", path, "--json"]);
    assert_eq!(told["size_bytes"].as_u64(), Some(fs::metadata(&file).expect("a file").len()));
    assert_eq!(here.cli(&["image", "export", "otter", "--json"]).0, 2);
    let (code, out, words) = there.cli(&["image", "import", path]);
    assert_eq!((code, out.trim()), (0, image.as_str()), "{words}");
    assert!(words.contains("imported 1 image: otter:latest, with 1 tool\n"), "{words}");
    assert_eq!(there.lodge.cli_ok(["bin", "ls", "-q"]).trim(), bin);
    // A pipe carries the same bytes, and taking them in again changes nothing.
    let piped = here.lodge.cli(["image", "export", "otter"]);
    assert_eq!(piped.stdout, fs::read(&file).expect("an archive"));
    let mut command = there.lodge.cli_command(["image", "import", "-", "--json"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("lodge");
    child.stdin.take().expect("stdin").write_all(&piped.stdout).expect("an archive");
    let output = child.wait_with_output().expect("an end");
    let again: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(again["images"][0]["digest"], image);
    let (code, out, _) = there.cli(&["run", "otter", "[[tool:greet|[]]] [[reply:done]]"]);
    assert_eq!((code, out.as_str()), (0, "done\n"));
}

#[tokio::test]
async fn an_archive_takes_names_from_nobody_without_a_word() {
    let (here, there) = (ApiWorld::new(), ApiWorld::new());
    let file = here.lodge.dir().join("tools.tar");
    let path = file.to_str().expect("UTF-8");
    let program = format!("{}:/bin/cat", crate::bins::platform());
    here.lodge.cli_ok(["bin", "build", "rg", &program, "-t", "stock/rg", "-t", "mine"]);
    here.lodge.cli_ok(["image", "export", "stock/rg", "mine", "-o", path]);
    let (code, out, words) = there.cli(&["image", "import", path]);
    assert_eq!((code, out.as_str()), (1, ""), "{words}");
    assert!(words.contains("names of stock tools") && words.contains("`stock/rg:latest`"), "{words}");
    assert!(words.contains("hint: nothing was imported") && words.contains("--yes"), "{words}");
    // At a terminal there is a question, and no answer is a no.
    for (answer, code) in [("\n", 1), ("maybe\n", 1), ("y\n", 0)] {
        assert!(there.lodge.cli_ok(["bin", "ls", "-q"]).is_empty());
        let mut typing = TerminalSession::at(there.lodge.cli_command(["image", "import", path]));
        typing.see("take these names? [y]es or [N]o: ");
        typing.type_in(answer);
        assert_eq!(typing.end(), code, "{answer:?}");
    }
    assert!(there.lodge.cli_ok(["bin", "ls"]).contains("stock/rg:latest"));
    let program = format!("{}:/bin/ls", crate::bins::platform());
    there.lodge.cli_ok(["bin", "build", "rg", &program, "-t", "mine"]);
    let (code, _, words) = there.cli(&["image", "import", "--yes", path]);
    assert!(code == 1 && words.contains("`mine:latest`") && words.contains("--move"), "{words}");
    assert_eq!(there.cli(&["image", "import", "--move", path]).0, 0);
}

#[tokio::test]
async fn what_is_no_archive_is_refused_and_none_is_shown_to_a_terminal() {
    let world = ApiWorld::new();
    built(&world);
    let nonsense = world.lodge.dir().join("nonsense");
    fs::write(&nonsense, "no archive".repeat(100_000)).expect("a file");
    let (code, out, words) = world.cli(&["image", "import", nonsense.to_str().expect("UTF-8")]);
    assert!(
        words.contains("it is no tar archive") && words.contains("`lodge image export IMAGE -o FILE`"),
        "{words}"
    );
    assert_eq!((code, out.as_str()), (1, ""), "{words}");
    assert!(words.contains("error: "), "{words}");
    for path in ["/no/such/file", world.lodge.dir().to_str().expect("UTF-8")] {
        assert_eq!(world.cli(&["image", "import", path]).0, 2);
    }
    let (mut ours, theirs) = terminal();
    let mut command = world.lodge.cli_command(["image", "export", "otter"]);
    let mut child = command.stdout(theirs).stderr(Stdio::piped()).spawn().expect("lodge");
    drop(command);
    let mut shown = Vec::new();
    // A terminal whose other end is closed gives an error where a pipe gives an end.
    drop(ours.read_to_end(&mut shown));
    assert_eq!(child.wait().expect("an end").code(), Some(2));
    assert!(shown.is_empty());
}

/// A tool whose program does not compress, so that its layer is as long.
fn big_tool(world: &ApiWorld, registry: &MockRegistry) -> String {
    let path = world.lodge.dir().join("big");
    let mut noise: u64 = 88_172_645_463_325_252;
    let mut next = || {
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        noise.to_le_bytes()
    };
    fs::write(&path, (0..256 * 1024).flat_map(|_| next()).collect::<Vec<u8>>()).expect("a file");
    let reference = format!("{}/tools/big:v1", registry.host());
    world.lodge.cli_ok(["bin", "build", "big", &format!("{PLATFORM}:{}", path.display())]);
    world.lodge.cli_ok(["bin", "push", "big", &reference]);
    reference
}

fn at_terminal(lodge: &Lodge, args: &[&str]) -> TerminalSession {
    let mut command: Command = lodge.cli_command(args);
    command.env("TERM", "xterm");
    TerminalSession::at(command)
}

#[tokio::test]
async fn a_pull_shows_a_bar_at_a_terminal_and_goes_on_when_it_is_left() {
    let (here, there) = (ApiWorld::new(), ApiWorld::new());
    let registry = MockRegistry::start().expect("a registry");
    let reference = big_tool(&here, &registry);
    registry.fault("GET", "/blobs/", FaultCount::Always, RegistryFault::StallAt(1024 * 1024));
    let mut typing = at_terminal(&there.lodge, &["bin", "pull", &reference]);
    typing.see(&format!("pulling {reference}\r\n  big"));
    typing.see("█");
    typing.see("░");
    kill(i32::try_from(typing.pid()).expect("a pid"), libc::SIGINT);
    typing.see("\u{1b}[J");
    typing.see(&format!(
        "detached; the daemon continues the pull: `lodge bin pull {reference}` shows its progress again"
    ));
    assert_eq!(typing.end(), 130);
    // A second call waits for the same transfer.
    let asked = registry.count("GET", "/blobs/");
    let again = there.lodge.cli_command(["bin", "pull", &reference]).stderr(Stdio::piped()).spawn();
    let mut again = again.expect("lodge");
    let mut line = [0; 8];
    again.stderr.as_mut().expect("stderr").read_exact(&mut line).expect("a line");
    assert_eq!((&line, registry.count("GET", "/blobs/")), (b"pulling ", asked));
    kill(i32::try_from(again.id()).expect("a pid"), libc::SIGINT);
    assert_eq!(again.wait().expect("an end").code(), Some(130));
}
