//! The set as `make stock` packed it, and the question for each tool.

use std::path::{Path, PathBuf};
use std::process::Command;

use lodge_testkit::lodge::Lodge;
use serde_json::Value;

/// A tool, its arguments, and the expected part of its answer.
#[derive(Debug)]
pub struct ToolQuestion {
    pub tool: &'static str,
    pub args: &'static [&'static str],
    pub stdin: &'static str,
    pub answer: &'static str,
}

pub const ASKS: [ToolQuestion; 5] = [
    ToolQuestion {
        tool: "busybox",
        args: &["sh", "-c", "echo lodge | awk '{ print toupper($1) }'"],
        stdin: "",
        answer: "LODGE",
    },
    ToolQuestion { tool: "rg", args: &["-n", "tw", "-"], stdin: "one\ntwo\n", answer: "2:two" },
    ToolQuestion { tool: "fd", args: &["-u", "--max-depth", "1", ".", ".."], stdin: "", answer: "../" },
    ToolQuestion { tool: "jaq", args: &["-c", ".a | add"], stdin: r#"{"a": [1, 2]}"#, answer: "3" },
    ToolQuestion {
        tool: "xh",
        args: &["--ignore-stdin", "--offline", "--print=H", "GET", "https://example.org/", "a==b"],
        stdin: "",
        answer: "GET /?a=b HTTP/1.1",
    },
];

/// The archive of the set.
pub fn archive() -> PathBuf {
    let path = std::env::var_os("LODGE_TEST_STOCK").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/stock/stock.tar"),
        PathBuf::from,
    );
    assert!(path.exists(), "{} is not there: run `make stock`", path.display());
    path
}

/// A directory of `examples/`.
pub fn example(name: &str) -> String {
    let examples = std::env::var_os("LODGE_TEST_EXAMPLES")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples"), PathBuf::from);
    examples.join(name).to_str().expect("UTF-8").to_owned()
}

/// A daemon that has the set.
pub fn stocked() -> Lodge {
    let lodge = Lodge::started();
    lodge.cli_ok(["image".as_ref(), "import".as_ref(), "--yes".as_ref(), archive().as_os_str()]);
    lodge
}

pub fn bin_of(lodge: &Lodge, name: &str) -> Value {
    let told = lodge.cli_ok(["--json", "bin", "inspect", name]);
    let told: Value = serde_json::from_str(&told).expect("JSON");
    told.as_array().and_then(|all| all.first().cloned()).unwrap_or(told)
}

/// The programs of the set, and nothing else, in a directory: what the layers of the archive hold.
pub fn unpacked(dir: &Path) -> PathBuf {
    const GZIP: [u8; 2] = [0x1f, 0x8b];
    let (layout, root) = (dir.join("layout"), dir.join("root"));
    for new in [&layout, &root] {
        std::fs::create_dir(new).expect("a directory");
    }
    tar(&archive(), &layout);
    for blob in std::fs::read_dir(layout.join("blobs/sha256")).expect("blobs") {
        let blob = blob.expect("an entry").path();
        if std::fs::read(&blob).expect("a blob").starts_with(&GZIP) {
            tar(&blob, &root);
        }
    }
    root
}

fn tar(archive: &Path, into: &Path) {
    let output = Command::new("tar")
        .args([
            "--no-same-owner".as_ref(),
            "-C".as_ref(),
            into.as_os_str(),
            "-xf".as_ref(),
            archive.as_os_str(),
        ])
        .output()
        .expect("tar runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_model_gets_of_every_tool_what_it_does_and_how_it_is_used() {
    let lodge = stocked();
    for ask in &ASKS {
        let bin = bin_of(&lodge, &format!("stock/{}", ask.tool));
        let of = |key: &str| bin[key].as_str().unwrap_or_default().to_owned();
        assert!(!of("description").is_empty() && of("usage").contains(&of("description")), "{bin}");
        assert!(bin["runs_here"] == true && of("name") == ask.tool, "{bin}");
        assert!(bin["labels"]["org.opencontainers.image.version"].is_string(), "{bin}");
    }
    assert_eq!(bin_of(&lodge, "stock/jq")["digest"], bin_of(&lodge, "stock/jaq")["digest"]);
}

#[test]
fn the_same_programs_packed_again_somewhere_else_are_the_same_images() {
    let lodge = stocked();
    let programs = unpacked(lodge.dir());
    for ask in &ASKS {
        let bin = bin_of(&lodge, &format!("stock/{}", ask.tool));
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        let usage = lodge.dir().join("usage.md");
        std::fs::write(&usage, text(&bin["usage"])).expect("a file");
        let mut args = vec!["bin".to_owned(), "build".into(), ask.tool.into()];
        let program = programs.join(ask.tool);
        args.push(format!("{}:{}", text(&bin["platforms"][0]), program.display()));
        args.extend(["-t".into(), "again".into(), "--description".into(), text(&bin["description"])]);
        args.extend(["--usage".into(), usage.to_str().expect("UTF-8").into()]);
        for (key, value) in bin["labels"].as_object().expect("labels") {
            args.extend(["--label".into(), format!("{key}={}", text(value))]);
        }
        let digest = lodge.cli_ok(args);
        assert_eq!(digest.trim(), bin["digest"].as_str().expect("a digest"), "{}", ask.tool);
    }
}
