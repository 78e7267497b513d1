//! Agentfiles with the files they name.
//!
//! Owns: what may be read and how much. Never: tests the language.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use lodge_image::agentfile::{ADD_MAX, CONTEXT_MAX, FILE_MAX, LoadError};

use crate::{AgentfileImages, Args, args, load_dir, load_inline};

/// A directory of the test's own, gone when it ends.
struct AgentfileDir(PathBuf);

impl AgentfileDir {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("lodge-image-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("a fresh directory");
        Self(path)
    }

    fn with(agentfile: &str) -> Self {
        Self::new().file("Agentfile", agentfile.as_bytes())
    }

    fn file(self, name: &str, bytes: &[u8]) -> Self {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("create directories");
        fs::write(path, bytes).expect("write");
        self
    }

    fn sparse(self, name: &str, size: u64) -> Self {
        fs::File::create(self.0.join(name)).and_then(|file| file.set_len(size)).expect("a sparse file");
        self
    }

    fn refused(&self) -> LoadError {
        load_dir(&self.0, &Args::new()).expect_err("refused")
    }
}

impl Drop for AgentfileDir {
    fn drop(&mut self) {
        // A leftover directory is harmless.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_directory_and_its_agentfile_load_the_same() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/caretaker");
    let house = load_inline(b"FROM scratch\nMODEL work/small\n", &Args::new()).expect("loads");
    let shelf = AgentfileImages([("house:latest".to_owned(), house)].into());
    let load = |path: &Path| lodge_image::agentfile::load_dir(path, &Args::new(), &shelf).expect("loads");
    let loaded = load(&directory);
    assert_eq!(load(&directory.join("Agentfile")), loaded);
    assert_eq!(loaded.source, fs::read(directory.join("Agentfile")).expect("read"));
    let contexts: Vec<_> = loaded
        .contexts
        .iter()
        .map(|c| (c.name.as_str(), c.description.as_deref(), c.text.as_str()))
        .collect();
    let expected = [
        ("SOUL", Some("from a file"), "You are patient.\n"),
        ("WORKSHOP", None, "# Workshop\r\nTools hang on the left wall.\n\n"),
    ];
    assert_eq!(contexts, expected);
    let files: Vec<_> = loaded.files.iter().map(|file| (file.name.as_str(), file.bytes.len())).collect();
    assert_eq!(files, [("plan.csv", 18), ("guide.md", 42)]);
}

#[test]
fn a_file_of_any_name_is_an_agentfile_and_errors_call_it_by_that_name() {
    let dir = AgentfileDir::new().file("agents/Otter", b"FROM scratch\nADD x\n").file("agents/x", b"1");
    assert_eq!(load_dir(&dir.0.join("agents/Otter"), &Args::new()).expect("loads").files[0].bytes, b"1");
    let dir = dir.file("agents/Otter", b"FORM scratch\n");
    let error = load_dir(&dir.0.join("agents/Otter"), &Args::new()).expect_err("refused");
    let told = format!("{}/agents/Otter:1:1: unknown instruction `FORM`", dir.0.display());
    assert!(error.to_string().starts_with(&told), "{error}");
    assert_eq!(error.code(), "agentfile.unknown_instruction");
    assert_eq!(error.hint(), "did you mean `FROM`?");
}

#[test]
fn what_is_missing_is_named_with_the_line_that_wanted_it() {
    let dir = AgentfileDir::new();
    assert_eq!(dir.refused().code(), "agentfile.not_found");
    assert_eq!(
        load_dir(&dir.0.join("nowhere"), &Args::new()).expect_err("refused").code(),
        "agentfile.file_unreadable"
    );
    let dir = AgentfileDir::with("FROM scratch\n\nCONTEXT A file://soul.md\n  ADD a.csv \"rows\"\n");
    let error = dir.refused();
    assert_eq!(
        error.to_string().replace(&format!("{}/", dir.0.display()), ""),
        "Agentfile:3:11: `soul.md` could not be read: there is no such file\n  \
         expected a file that the daemon can read\n  hint: check that `soul.md` is there and readable\n\
         Agentfile:4:7: `a.csv` could not be read: there is no such file\n  \
         expected a file that the daemon can read\n  hint: check that `a.csv` is there and readable"
    );
    assert_eq!(error.code(), "agentfile.file_unreadable");
}

#[test]
fn links_may_point_inside_the_directory_and_not_out_of_it() {
    let outside = AgentfileDir::new().file("secret", b"s");
    let dir = AgentfileDir::with("FROM scratch\nADD link\n").file("inner/real", b"r");
    symlink("inner/real", dir.0.join("link")).expect("link");
    assert_eq!(load_dir(&dir.0, &Args::new()).expect("loads").files[0].bytes, b"r");
    for target in [
        outside.0.join("secret"),
        PathBuf::from("../").join(outside.0.file_name().expect("name")).join("secret"),
    ] {
        fs::remove_file(dir.0.join("link")).expect("unlink");
        symlink(target, dir.0.join("link")).expect("link");
        assert_eq!(dir.refused().code(), "agentfile.file_outside");
    }
    let dir = AgentfileDir::with("FROM scratch\nCONTEXT A file://door/secret\n");
    symlink(&outside.0, dir.0.join("door")).expect("link");
    assert_eq!(dir.refused().code(), "agentfile.file_outside");
    let dir = AgentfileDir::new();
    symlink(outside.0.join("secret"), dir.0.join("Agentfile")).expect("link");
    assert_eq!(dir.refused().code(), "agentfile.file_outside");
}

#[test]
fn a_link_that_leads_to_itself_is_refused() {
    let dir = AgentfileDir::with("FROM scratch\nADD loop\n");
    symlink("loop", dir.0.join("loop")).expect("link");
    assert_eq!(dir.refused().code(), "agentfile.file_unreadable");
}

#[test]
fn only_regular_files_are_opened() {
    let dir = AgentfileDir::with("FROM scratch\nADD thing\n");
    fs::create_dir(dir.0.join("thing")).expect("directory");
    assert_eq!(dir.refused().code(), "agentfile.file_not_regular");
    fs::remove_dir(dir.0.join("thing")).expect("remove");
    assert!(Command::new("mkfifo").arg(dir.0.join("thing")).status().expect("mkfifo").success());
    assert_eq!(dir.refused().code(), "agentfile.file_not_regular");
    let pipe = load_dir(&dir.0.join("thing"), &Args::new()).expect_err("refused");
    assert_eq!(pipe.code(), "agentfile.file_not_regular");
    fs::remove_file(dir.0.join("thing")).expect("remove");
    let _socket = UnixListener::bind(dir.0.join("thing")).expect("socket");
    assert_eq!(dir.refused().code(), "agentfile.file_not_regular");
    // Had it been tried, a socket would have refused to be opened.
    let socket = load_dir(&dir.0.join("thing"), &Args::new()).expect_err("refused");
    assert_eq!(socket.code(), "agentfile.file_not_regular");
    assert_eq!(
        load_dir(Path::new("/dev/null"), &Args::new()).expect_err("refused").code(),
        "agentfile.file_not_regular"
    );
}

#[test]
fn every_size_is_refused_one_byte_beyond_and_not_before() {
    let context = |size| AgentfileDir::with("FROM scratch\nCONTEXT A file://a\n").sparse("a", size);
    let add = |size| AgentfileDir::with("FROM scratch\nADD a\n").sparse("a", size);
    load_dir(&context(CONTEXT_MAX).0, &Args::new()).expect("loads");
    load_dir(&add(ADD_MAX).0, &Args::new()).expect("loads");
    assert_eq!(context(CONTEXT_MAX + 1).refused().code(), "agentfile.added_file_too_large");
    assert_eq!(add(ADD_MAX + 1).refused().code(), "agentfile.added_file_too_large");
    assert_eq!(
        AgentfileDir::new().sparse("Agentfile", FILE_MAX as u64 * 1000).refused().code(),
        "agentfile.file_too_large"
    );
}

#[test]
fn files_that_are_small_alone_can_be_too_much_together() {
    let four = "FROM scratch\nADD a a1\nADD a a2\nADD a a3\nADD a a4\n";
    load_dir(&AgentfileDir::with(four).sparse("a", ADD_MAX).0, &Args::new()).expect("loads");
    let error = AgentfileDir::with(&format!("{four}ADD b\n")).sparse("a", ADD_MAX).file("b", b"1").refused();
    assert_eq!(error.code(), "agentfile.files_too_large");
    assert!(error.to_string().contains("/Agentfile:6:5: with `b`"), "{error}");
}

#[test]
fn a_context_must_be_text_and_an_added_file_need_not() {
    let dir = AgentfileDir::with("FROM scratch\nADD a\n").file("a", b"\xff\0");
    assert_eq!(load_dir(&dir.0, &Args::new()).expect("loads").files[0].bytes, b"\xff\0");
    let dir = dir.file("Agentfile", b"FROM scratch\nCONTEXT A file://a\n");
    assert_eq!(dir.refused().code(), "agentfile.context_not_utf8");
}

#[test]
fn only_the_context_that_wins_is_read() {
    let dir = AgentfileDir::with("FROM scratch\nCONTEXT A file://missing\nCONTEXT A <<E\nhere\nE\n");
    assert_eq!(load_dir(&dir.0, &Args::new()).expect("loads").contexts[0].text, "here");
}

#[test]
fn an_agentfile_from_stdin_can_name_no_files() {
    let loaded = load_inline(b"FROM scratch\nCONTEXT A <<E\nx\nE\n", &Args::new()).expect("loads");
    assert_eq!((loaded.contexts[0].text.as_str(), loaded.files.len()), ("x", 0));
    for (source, place) in [
        ("FROM scratch\nADD a\n", "stdin:2:5: `a` is a file"),
        ("FROM scratch\n\nCONTEXT A file://a\n", "stdin:3:11: `a` is a file"),
        ("FROM ../x\n", "stdin:1:6: `../x` is a file"),
    ] {
        let error = load_inline(source.as_bytes(), &Args::new()).expect_err("refused");
        assert!(error.to_string().starts_with(place), "{error}");
        assert_eq!(error.code(), "agentfile.no_directory");
        assert!(error.hint().contains("instead of stdin"));
    }
    let error = load_inline(b"WAT", &Args::new()).expect_err("refused");
    assert!(error.to_string().starts_with("stdin:1:1: unknown instruction"), "{error}");
}

#[test]
fn a_build_argument_that_nothing_declares_is_refused_and_the_declared_ones_are_named() {
    let source = b"FROM scratch\nARG tag\nARG registry=x\n";
    load_inline(source, &args(&[("tag", "1")])).expect("loads");
    let error = load_inline(source, &args(&[("tag", "1"), ("tga", "2"), ("x\n", "")])).expect_err("refused");
    assert_eq!(error.code(), "agentfile.undeclared_arg");
    assert_eq!(error.to_string(), r"no ARG declares `tga`, `x\n`");
    assert_eq!(error.hint(), "these are declared: `registry`, `tag`");
    let error = load_inline(b"FROM scratch\n", &args(&[("a", "")])).expect_err("refused");
    assert!(error.hint().starts_with("the Agentfile has no ARG"), "{}", error.hint());
}

#[test]
fn what_a_builder_does_not_carry_out_is_reported_with_everything_else() {
    let error =
        AgentfileDir::with("FROM scratch\nADD gone\nMCP a host:b\nMCP c https://d.example/\n").refused();
    let LoadError::Mistakes(errors) = error else { panic!("{error}") };
    let found: Vec<String> = errors.iter().map(|error| format!("{}:{}", error.line, error.code())).collect();
    assert_eq!(found, ["2:agentfile.file_unreadable", "3:agentfile.unsupported", "4:agentfile.unsupported"]);
}

#[test]
fn more_missing_files_than_anybody_reads_are_counted_and_not_listed() {
    let adds: String = (0..4_000).map(|n| format!("ADD f{n}\n")).collect();
    let LoadError::Mistakes(errors) = AgentfileDir::with(&format!("FROM scratch\n{adds}")).refused() else {
        panic!("no mistakes")
    };
    assert_eq!(errors.iter().count(), 101);
    assert_eq!(
        errors.iter().last().map(lodge_image::agentfile::AgentfileError::code),
        Some("agentfile.too_many_errors")
    );
}
