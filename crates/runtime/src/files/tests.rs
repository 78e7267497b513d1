//! Calls of the file tools as a model makes them: what they print, change and refuse.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::*;

/// A directory to work in, and calls with paths below it.
struct Workspace(tempfile::TempDir);

impl Workspace {
    fn new(files: &[(&str, &str)]) -> Workspace {
        let workspace = Workspace(tempfile::tempdir().unwrap());
        for (name, text) in files {
            let path = workspace.at(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        workspace
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.at(name)).unwrap()
    }

    /// Runs a tool. A leading `@` of an argument is the workspace, and is left out of the result again.
    fn call(&self, tool: FileTool, args: &[&str], stdin: &str) -> Result<String, String> {
        let place = self.0.path().to_str().unwrap();
        let args = args.iter().map(|arg| match arg.strip_prefix('@') {
            Some(name) => self.at(name).into_os_string(),
            None => arg.into(),
        });
        let mut out = Vec::new();
        let ended = tool.call(args.collect(), &mut stdin.as_bytes(), &mut out);
        let show = |text: String| text.replace(&format!("{place}/"), "@").replace(place, "@");
        match ended {
            Ok(()) => Ok(show(String::from_utf8(out).unwrap())),
            Err(error) => {
                let hint = error.hint().map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
                Err(show(format!("{error}{hint}")))
            }
        }
    }

    fn refused(&self, tool: FileTool, args: &[&str], stdin: &str, words: &str) {
        let error = self.call(tool, args, stdin).unwrap_err();
        assert!(error.contains(words), "{args:?}: {error}");
    }
}

#[test]
fn a_program_is_a_file_tool_by_the_place_it_is_bound_at() {
    let tool = |path: &str| FileTool::of_program(Path::new(path));
    assert_eq!(tool("/opt/lodge/builtin/read"), Some(FileTool::Read));
    assert_eq!(tool("/state/agents/a/opt/lodge/builtin/search"), Some(FileTool::Search));
    for other in ["/opt/lodge/runtime", "/opt/lodge/builtin/other", "/bin/read", "read", "/"] {
        assert_eq!(tool(other), None, "{other}");
    }
}

#[test]
fn read_numbers_lines_and_says_how_to_read_on() {
    let many: String = (1..=3000).map(|n| format!("line {n}\n")).collect();
    let space = Workspace::new(&[("a", "one\r\ntwo\nthree"), ("many", &many), ("empty", "")]);
    let read = |args: &[&str]| space.call(FileTool::Read, args, "");
    assert_eq!(read(&["@a"]), Ok("     1\tone\n     2\ttwo\n     3\tthree\n".into()));
    let middle = "     2\ttwo\n[more lines follow; read on with {\"args\": [\"@a\", \"--offset\", \"3\"]}]\n";
    assert_eq!(read(&["@a", "--offset", "2", "--limit=1"]), Ok(middle.into()));
    assert_eq!(read(&["@empty"]), Ok("[the file is empty]\n".into()));
    let first = read(&["@many"]).unwrap();
    assert!(first.contains("  2000\tline 2000\n[more lines follow") && first.contains("\"2001\""), "{first}");
    assert!(read(&["@many", "--offset", "2001"]).unwrap().ends_with("  3000\tline 3000\n"));
    space.refused(FileTool::Read, &["@many", "--offset", "3001"], "", "has only 3000 lines");
}

#[test]
fn read_refuses_what_is_not_a_text_file_and_bad_arguments() {
    let space = Workspace::new(&[("bin", "a\0b"), ("dir/x", "")]);
    space.refused(FileTool::Read, &["@bin"], "", "is not text");
    space.refused(FileTool::Read, &["@dir"], "", "is a directory");
    space.refused(FileTool::Read, &["@missing"], "", "hint: check the path");
    space.refused(FileTool::Read, &["/dev/zero"], "", "not a regular file");
    space.refused(FileTool::Read, &[], "", "the path is missing\nhint: usage: ");
    space.refused(FileTool::Read, &["@bin", "--offset", "x"], "", "needs a number");
    space.refused(FileTool::Read, &["@bin", "--lines", "3"], "", "there is no option `--lines`");
    space.refused(FileTool::Read, &["@bin", "@dir"], "", "is not expected");
}

#[test]
fn what_read_prints_is_bounded_whatever_a_file_contains() {
    let space = Workspace::new(&[
        ("long", &"x".repeat(1_000_000)),
        ("wide", &format!("{}\n", "y".repeat(1900)).repeat(500)),
    ]);
    let long = space.call(FileTool::Read, &["@long"], "").unwrap();
    assert!(long.len() < 3000 && long.contains("[cut: the line has 1000000 bytes]"), "{}", long.len());
    let wide = space.call(FileTool::Read, &["@wide"], "").unwrap();
    assert!(wide.len() < OUTPUT_BYTES_MAX + 200 && wide.contains("more lines follow"), "{}", wide.len());
}

#[test]
fn write_creates_directories_keeps_the_mode_and_follows_links() {
    let space = Workspace::new(&[("script", "old")]);
    fs::set_permissions(space.at("script"), fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink("script", space.at("link")).unwrap();
    let said = space.call(FileTool::Write, &["@link"], "a\nb\n");
    assert_eq!(said, Ok("wrote @link: 2 lines, 4 bytes (replaced 3 bytes)\n".into()));
    assert_eq!(space.text("script"), "a\nb\n");
    assert!(space.at("link").symlink_metadata().unwrap().is_symlink());
    assert_eq!(space.at("script").metadata().unwrap().permissions().mode() & 0o777, 0o755);
    let said = space.call(FileTool::Write, &["@new/deep/file", "--text"], "");
    assert_eq!(said, Ok("wrote @new/deep/file: 1 lines, 6 bytes (a new file)\n".into()));
    space.call(FileTool::Write, &["@script", ""], "").unwrap();
    assert_eq!(space.text("script"), "");
    // No temporary file is left.
    assert_eq!(fs::read_dir(space.0.path()).unwrap().count(), 3);
}

#[test]
fn write_refuses_a_call_without_text_and_what_is_not_a_file() {
    let space = Workspace::new(&[("file", "kept")]);
    space.refused(FileTool::Write, &["@file"], "", "there is no text to write");
    space.refused(FileTool::Write, &["@"], "x", "is a directory");
    space.refused(FileTool::Write, &["@file/below"], "x", "could not write");
    space.refused(FileTool::Write, &["@file", "a", "b"], "", "is not expected");
    assert_eq!(space.text("file"), "kept");
}

#[test]
fn replace_changes_one_exact_text_and_refuses_two() {
    let space = Workspace::new(&[("f", "fn a() {\n    one();\n}\nfn b() {\n    one();\n}\n")]);
    let replace = |args: &[&str]| space.call(FileTool::Replace, args, "");
    let twice = replace(&["@f", "    one();", "    two();"]).unwrap_err();
    assert!(twice.contains("occurs 2 times in `@f` (lines 2, 5); nothing was changed"), "{twice}");
    assert_eq!(
        replace(&["@f", "fn b() {\n    one();", "fn b() {\n    --two();"]),
        Ok("replaced 1 occurrence in @f (line 4)\n".into())
    );
    assert_eq!(space.text("f"), "fn a() {\n    one();\n}\nfn b() {\n    --two();\n}\n");
    let all = replace(&["--all", "@f", "fn ", "pub fn "]);
    assert_eq!(all, Ok("replaced 2 occurrences in @f (line 1, 4)\n".into()));
    let missing = replace(&["@f", "    three();\n}", "x"]).unwrap_err();
    assert!(missing.contains("does not occur"), "{missing}");
    let indented = replace(&["@f", "\tone();\n}", "x"]).unwrap_err();
    assert!(indented.contains("at line 2 it occurs with other spaces"), "{indented}");
    space.refused(FileTool::Replace, &["@f", "", "x"], "", "must not be empty");
    space.refused(FileTool::Replace, &["@f", "x", "x"], "", "are the same");
    space.refused(FileTool::Replace, &["@f", "x"], "", "the new text is missing");
    space.refused(FileTool::Replace, &["@f"], "", "are missing");
}

#[test]
fn replace_applies_all_blocks_or_none() {
    let space = Workspace::new(&[("f", "a\nb\nc\n")]);
    let block = |old: &str, new: &str| format!("<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n");
    let both = block("a", "A") + "\n" + &block("c", "C\nD");
    assert_eq!(
        space.call(FileTool::Replace, &["@f"], &both),
        Ok("replaced 2 occurrences in @f (line 1, 3)\n".into())
    );
    assert_eq!(space.text("f"), "A\nb\nC\nD\n");
    let half = block("b", "B") + &block("zzz", "Z");
    space.refused(FileTool::Replace, &["@f"], &half, "the old text of change 2 does not occur");
    space.refused(FileTool::Replace, &["@f"], "<<<<<<< SEARCH\nb\n", "line 3 of `stdin` is not `=======`");
    space.refused(FileTool::Replace, &["@f"], "b\n", "line 1 of `stdin` is not `<<<<<<< SEARCH`");
    assert_eq!(space.text("f"), "A\nb\nC\nD\n");
}

#[test]
fn changes_of_one_file_at_the_same_time_are_all_made() {
    const CALLS: usize = 8;
    let lines: String = (0..CALLS).map(|n| format!("<{n}>\n")).collect();
    let space = Workspace::new(&[("f", &lines)]);
    for round in 0..20 {
        std::thread::scope(|scope| {
            for n in 0..CALLS {
                let space = &space;
                let (old, new) =
                    (format!("<{n}{}>", "+".repeat(round)), format!("<{n}{}>", "+".repeat(round + 1)));
                scope.spawn(move || space.call(FileTool::Replace, &["@f", &old, &new], "").unwrap());
            }
        });
    }
    let expected: String = (0..CALLS).map(|n| format!("<{n}{}>\n", "+".repeat(20))).collect();
    assert_eq!(space.text("f"), expected);
}

#[test]
fn replace_changes_thousands_of_lines_of_a_long_file_at_once() {
    const LINES: usize = 400_000;
    let space = Workspace::new(&[("f", &"a\n".repeat(LINES))]);
    let said = space.call(FileTool::Replace, &["--all", "@f", "a", "b"], "").unwrap();
    assert!(said.starts_with("replaced 400000 occurrences in @f (line 1, 2, 3, "), "{said}");
    assert_eq!(space.text("f"), "b\n".repeat(LINES));
}

#[test]
fn replace_keeps_the_line_breaks_of_a_file() {
    let space = Workspace::new(&[("dos", "one\r\ntwo\r\nthree\r\n")]);
    space.call(FileTool::Replace, &["@dos", "one\ntwo", "1\n2"], "").unwrap();
    assert_eq!(space.text("dos"), "1\r\n2\r\nthree\r\n");
}

#[test]
fn list_shows_kinds_and_does_not_enter_what_others_made() {
    let space = Workspace::new(&[("b.txt", "four"), ("a/deep/x", ""), (".git/config", "x")]);
    std::os::unix::fs::symlink("b.txt", space.at("link")).unwrap();
    let list = |args: &[&str]| space.call(FileTool::List, args, "");
    assert_eq!(list(&["@"]), Ok(".git/ (not entered)\na/\nb.txt (4 bytes)\nlink -> b.txt\n".into()));
    let deep = list(&["@", "--depth", "3"]).unwrap();
    assert!(deep.contains("a/\na/deep/\na/deep/x (0 bytes)\n") && !deep.contains("config"), "{deep}");
    assert_eq!(list(&["@", "--limit", "1"]).unwrap().lines().count(), 2);
    assert_eq!(list(&["@.git"]), Ok("config (1 bytes)\n".into()));
    space.refused(FileTool::List, &["@b.txt"], "", "is a file");
    space.refused(FileTool::List, &["@none"], "", "could not list");
}

#[test]
fn search_finds_patterns_and_plain_text_and_stops_at_its_limit() {
    let space = Workspace::new(&[
        ("src/a.rs", "fn one() {}\nlet x = a.b(c);\n"),
        ("src/b.txt", "FN two\n"),
        ("target/c.rs", "fn made() {}\n"),
        ("bin", "fn \0"),
    ]);
    let search = |args: &[&str]| space.call(FileTool::Search, args, "");
    assert_eq!(search(&[r"^fn \w+", "@"]), Ok("@src/a.rs:1:fn one() {}\n".into()));
    assert_eq!(search(&["--ignore-case", "--files", "fn", "@"]), Ok("@src/a.rs\n@src/b.txt\n".into()));
    assert_eq!(search(&["a.b(c)", "@src", "--literal"]), Ok("@src/a.rs:2:let x = a.b(c);\n".into()));
    assert_eq!(search(&["--name", "*.txt", "--ignore-case", "fn", "@"]), Ok("@src/b.txt:1:FN two\n".into()));
    assert_eq!(search(&["fn", "@target"]), Ok("@target/c.rs:1:fn made() {}\n".into()));
    fs::write(space.at("target/dos"), "the end\r\n").unwrap();
    assert_eq!(search(&["end$", "@target"]), Ok("@target/dos:1:the end\n".into()));
    assert_eq!(search(&["nowhere", "@"]), Ok("[no match in 2 files]\n".into()));
    let cut = search(&[".", "@", "--limit", "1"]).unwrap();
    assert!(cut.starts_with("@src/a.rs:1:") && cut.contains("more matches follow"), "{cut}");
    space.refused(FileTool::Search, &["a(", "@"], "", "hint: use `--literal`");
    space.refused(FileTool::Search, &["x", "@none"], "", "could not search `@none`");
    space.refused(FileTool::Search, &[], "", "the pattern is missing");
}
