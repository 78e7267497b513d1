//! Agentfiles with the files they name.
//!
//! Owns: what may be read and how much. Never: tests the language.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use lodge_image::agentfile::{ADD_MAX, CONTEXT_MAX, FILE_MAX, LoadError, load_dir, load_inline};

use crate::Args;

/// A directory of the test's own, gone when it ends.
struct Dir(PathBuf);

impl Dir {
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

impl Drop for Dir {
    fn drop(&mut self) {
        // A leftover directory harms nobody.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn root_cause(error: LoadError) -> LoadError {
    match error {
        LoadError::Instruction { cause, .. } => root_cause(*cause),
        other => other,
    }
}

#[test]
fn a_directory_and_its_agentfile_load_the_same() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/caretaker");
    let loaded = load_dir(&directory, &Args::new()).expect("loads");
    assert_eq!(load_dir(&directory.join("Agentfile"), &Args::new()).expect("loads"), loaded);
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
    let dir = Dir::new().file("agents/Otter", b"FROM scratch\nADD x\n").file("agents/x", b"1");
    assert_eq!(load_dir(&dir.0.join("agents/Otter"), &Args::new()).expect("loads").files[0].bytes, b"1");
    let dir = dir.file("agents/Otter", b"FORM scratch\n");
    let error = load_dir(&dir.0.join("agents/Otter"), &Args::new()).expect_err("refused");
    assert!(error.to_string().starts_with("Otter:1:1: unknown instruction `FORM`"), "{error}");
    assert_eq!(error.code(), "agentfile.unknown_instruction");
    assert_eq!(error.hint(), "did you mean `FROM`?");
}

#[test]
fn what_is_missing_is_named_with_the_line_that_wanted_it() {
    let dir = Dir::new();
    assert_eq!(dir.refused().code(), "agentfile.not_found");
    assert_eq!(
        load_dir(&dir.0.join("nowhere"), &Args::new()).expect_err("refused").code(),
        "agentfile.file_unreadable"
    );
    let error = Dir::with("FROM scratch\n\nCONTEXT A file://soul.md\n").refused();
    assert_eq!(error.to_string(), "Agentfile:3: CONTEXT could not be loaded");
    assert_eq!(error.code(), "agentfile.file_unreadable");
    let LoadError::Read { path, .. } = root_cause(error) else { panic!("not a read error") };
    assert_eq!(path, Path::new("soul.md"));
}

#[test]
fn links_may_point_inside_the_directory_and_not_out_of_it() {
    let outside = Dir::new().file("secret", b"s");
    let dir = Dir::with("FROM scratch\nADD link\n").file("inner/real", b"r");
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
    let dir = Dir::with("FROM scratch\nCONTEXT A file://door/secret\n");
    symlink(&outside.0, dir.0.join("door")).expect("link");
    assert_eq!(dir.refused().code(), "agentfile.file_outside");
    let dir = Dir::new();
    symlink(outside.0.join("secret"), dir.0.join("Agentfile")).expect("link");
    assert_eq!(dir.refused().code(), "agentfile.file_outside");
}

#[test]
fn a_link_that_leads_to_itself_is_refused() {
    let dir = Dir::with("FROM scratch\nADD loop\n");
    symlink("loop", dir.0.join("loop")).expect("link");
    assert_eq!(dir.refused().code(), "agentfile.file_unreadable");
}

#[test]
fn only_regular_files_are_opened() {
    let dir = Dir::with("FROM scratch\nADD thing\n");
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
    assert_eq!(
        load_dir(Path::new("/dev/null"), &Args::new()).expect_err("refused").code(),
        "agentfile.file_not_regular"
    );
}

#[test]
fn every_size_is_refused_one_byte_beyond_and_not_before() {
    let context = |size| Dir::with("FROM scratch\nCONTEXT A file://a\n").sparse("a", size);
    let add = |size| Dir::with("FROM scratch\nADD a\n").sparse("a", size);
    load_dir(&context(CONTEXT_MAX).0, &Args::new()).expect("loads");
    load_dir(&add(ADD_MAX).0, &Args::new()).expect("loads");
    assert_eq!(context(CONTEXT_MAX + 1).refused().code(), "agentfile.added_file_too_large");
    assert_eq!(add(ADD_MAX + 1).refused().code(), "agentfile.added_file_too_large");
    assert_eq!(
        Dir::new().sparse("Agentfile", FILE_MAX as u64 * 1000).refused().code(),
        "agentfile.file_too_large"
    );
}

#[test]
fn files_that_are_small_alone_can_be_too_much_together() {
    let four = "FROM scratch\nADD a a1\nADD a a2\nADD a a3\nADD a a4\n";
    load_dir(&Dir::with(four).sparse("a", ADD_MAX).0, &Args::new()).expect("loads");
    let error = Dir::with(&format!("{four}ADD b\n")).sparse("a", ADD_MAX).file("b", b"1").refused();
    assert_eq!(error.code(), "agentfile.files_too_large");
    assert_eq!(error.to_string(), "Agentfile:6: ADD could not be loaded");
}

#[test]
fn a_context_must_be_text_and_an_added_file_need_not() {
    let dir = Dir::with("FROM scratch\nADD a\n").file("a", b"\xff\0");
    assert_eq!(load_dir(&dir.0, &Args::new()).expect("loads").files[0].bytes, b"\xff\0");
    let dir = dir.file("Agentfile", b"FROM scratch\nCONTEXT A file://a\n");
    assert_eq!(dir.refused().code(), "agentfile.context_not_utf8");
}

#[test]
fn only_the_context_that_wins_is_read() {
    let dir = Dir::with("FROM scratch\nCONTEXT A file://missing\nCONTEXT A <<E\nhere\nE\n");
    assert_eq!(load_dir(&dir.0, &Args::new()).expect("loads").contexts[0].text, "here");
}

#[test]
fn an_agentfile_from_stdin_can_name_no_files() {
    let loaded = load_inline(b"FROM scratch\nCONTEXT A <<E\nx\nE\n", &Args::new()).expect("loads");
    assert_eq!((loaded.contexts[0].text.as_str(), loaded.files.len()), ("x", 0));
    for (source, place) in [
        ("FROM scratch\nADD a\n", "stdin:2: ADD"),
        ("FROM scratch\n\nCONTEXT A file://a\n", "stdin:3: CONTEXT"),
    ] {
        let error = load_inline(source.as_bytes(), &Args::new()).expect_err("refused");
        assert!(error.to_string().starts_with(place), "{error}");
        assert_eq!(error.code(), "agentfile.no_directory");
        assert!(error.hint().contains("instead of stdin"));
    }
    let error = load_inline(b"WAT", &Args::new()).expect_err("refused");
    assert!(error.to_string().starts_with("stdin:1:1: unknown instruction"), "{error}");
}
