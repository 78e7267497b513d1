//! Rules of the source: who may use whom (ARCHITECTURE.md), the layers of the fence (docs/security.md), names of types, and
//! errors that are types inside.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Crate, and which of ours it may depend on.
const MAY_USE: &[(&str, &[&str])] = &[
    ("events", &[]),
    ("core", &["events"]),
    ("engine", &["core"]),
    ("link", &[]),
    ("runtime-messages", &[]),
    ("proto", &["events", "link"]),
    ("store", &["core"]),
    ("exec", &["core", "link"]),
    ("image", &[]),
    ("model", &["core"]),
    ("keeper", &["link"]),
    ("runtime", &["runtime-messages"]),
    ("daemon", &["core", "engine", "proto", "store", "exec", "image", "model", "runtime-messages"]),
    ("selftest", &["proto"]),
    ("cli", &["proto", "selftest"]),
];

/// What crates with a promise of their own may take from outside.
const OUTSIDE: &[(&str, &[&str])] = &[
    ("events", &["prost", "schemars", "serde", "serde_json"]),
    ("core", &["prost", "thiserror"]),
    ("engine", &["serde_json", "sha2", "thiserror"]),
    ("link", &["libc"]),
    ("keeper", &["libc", "rustix"]),
    ("runtime", &["libc", "regex-lite", "serde", "serde_json"]),
    ("runtime-messages", &["serde", "serde_json"]),
];

fn crates() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../crates")
}

/// The names under `[dependencies]` of a crate.
fn dependencies(name: &str) -> BTreeSet<String> {
    let path = crates().join(name).join("Cargo.toml");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut inside = false;
    let mut names = BTreeSet::new();
    for line in text.lines() {
        if line.starts_with('[') {
            inside = line.trim() == "[dependencies]";
        } else if inside && let Some((name, _)) = line.split_once(['.', '=', ' ']) {
            names.insert(name.trim().to_owned());
        }
    }
    names
}

#[test]
fn every_crate_uses_only_those_it_may() {
    let table: BTreeMap<&str, &[&str]> = MAY_USE.iter().copied().collect();
    for entry in std::fs::read_dir(crates()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let allowed = table.get(name.as_str()).unwrap_or_else(|| panic!("crates/{name} is not in the table"));
        for used in dependencies(&name).iter().filter_map(|used| used.strip_prefix("lodge-")) {
            assert!(allowed.contains(&used), "crates/{name} must not use {used}");
        }
    }
}

#[test]
fn the_small_crates_stay_small() {
    for (name, allowed) in OUTSIDE {
        for used in dependencies(name).iter().filter(|used| !used.starts_with("lodge-")) {
            assert!(allowed.contains(&used.as_str()), "crates/{name} must not use {used}");
        }
    }
}

#[test]
fn only_the_store_sees_sql() {
    for (name, _) in MAY_USE.iter().filter(|(name, _)| *name != "store") {
        assert!(!dependencies(name).contains("rusqlite"), "crates/{name} uses rusqlite");
    }
}

/// The layers that the keeper's source names.
fn layers() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut files = Vec::new();
    sources(&crates().join("keeper/src"), &mut files);
    for file in files {
        let text = std::fs::read_to_string(file).unwrap();
        for call in ["layers.holds(", "layers.note(", "layers.missing("] {
            let named = text.split(call).skip(1).filter_map(|rest| rest.trim_start().strip_prefix('"'));
            found.extend(named.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
        }
    }
    found
}

#[test]
fn every_layer_of_the_fence_is_explained() {
    let page = std::fs::read_to_string(crates().join("../docs/security.md")).unwrap();
    let (_, table) = page.split_once("## The layers").unwrap();
    let layers = layers();
    assert!(layers.len() > 20, "{layers:?}");
    for layer in layers {
        assert!(table.contains(&format!("`{layer}`")), "docs/security.md does not explain {layer}");
    }
}

/// A reader who searches for the name of a type finds one definition, or two.
const DEFINITIONS_MAX: usize = 2;

#[test]
fn the_unit_file_in_the_documentation_is_the_one_that_ships() {
    let read = |path: &str| std::fs::read_to_string(crates().join("..").join(path)).unwrap();
    let unit = read("packaging/lodged.service");
    assert!(read("docs/install.md").contains(&format!("```ini\n{unit}```\n")));
    let has = |line: &str| unit.lines().any(|found| found == line);
    let limits = read("docs/limits.md");
    for line in ["KillMode=process", "Delegate=yes", "DelegateSubgroup=daemon"] {
        assert!(has(line), "{line}");
        assert!(line == "KillMode=process" || limits.contains(&format!("`{line}`")), "{line}");
    }
    // What the quickstart changes in it for a service of one user.
    let quickstart = read("docs/quickstart.md");
    for (part, line) in [
        ("/^Environment=/d", "Environment=LODGE_HOME=/var/lib/lodge"),
        ("s|/usr/local/bin/lodged|", "ExecStart=/usr/local/bin/lodged serve"),
        ("s|multi-user.target|default.target|", "WantedBy=multi-user.target"),
    ] {
        assert!(quickstart.contains(part) && has(line), "{part}");
    }
}

/// The source files below a directory, without what was built.
fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// A line without its visibility and `unsafe`.
fn without_modifiers(line: &str) -> &str {
    let line = line.trim_start();
    let line = match line.strip_prefix("pub(") {
        Some(rest) => rest.split_once(')').map_or(line, |(_, item)| item.trim_start()),
        None => line.strip_prefix("pub ").unwrap_or(line),
    };
    line.strip_prefix("unsafe ").unwrap_or(line)
}

/// The types that a formatted file defines, with their lines. A `type` of an `impl` or of a trait is not a definition.
fn types_of(text: &str) -> Vec<(String, usize)> {
    let mut types = Vec::new();
    let mut blocks: Vec<usize> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let indent = line.len() - line.trim_start().len();
        if line.trim_start().starts_with('}') && blocks.last().is_some_and(|block| indent <= *block) {
            blocks.pop();
        }
        let item = without_modifiers(line);
        if let Some((keyword, rest)) = item.split_once(' ')
            && (matches!(keyword, "struct" | "enum" | "trait" | "union")
                || (keyword == "type" && blocks.is_empty()))
        {
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            if name.starts_with(char::is_uppercase) {
                types.push((name, at + 1));
            }
        }
        let opens = ["impl ", "impl<", "trait "].iter().any(|start| item.starts_with(start));
        if opens && !line.ends_with(['}', ';']) {
            blocks.push(indent);
        }
    }
    types
}

#[test]
fn no_type_name_is_defined_three_times() {
    let workspace = crates().join("..");
    let mut files = Vec::new();
    for dir in ["crates", "testkit", "bench"] {
        sources(&workspace.join(dir), &mut files);
    }
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in &files {
        for (name, line) in types_of(&std::fs::read_to_string(file).unwrap()) {
            places
                .entry(name)
                .or_default()
                .push(format!("{}:{line}", file.strip_prefix(&workspace).unwrap().display()));
        }
    }
    assert!(places.len() > 1_000, "only {} types were found", places.len());
    places.retain(|_, places| places.len() > DEFINITIONS_MAX);
    assert!(places.is_empty(), "name these types for what they are: {places:#?}");
}

#[test]
fn every_code_that_the_daemon_sends_is_documented() {
    let mut files = Vec::new();
    for name in DECIDING {
        sources(&crates().join(name).join("src"), &mut files);
    }
    let protocol = std::fs::read_to_string(crates().join("../docs/runtime-protocol.md")).unwrap();
    let mut found = 0;
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        if file.components().any(|part| part.as_os_str() == "tests") || file.ends_with("tests.rs") {
            continue;
        }
        // A call with a code, or an arm of a `code()`.
        for before in ["ErrorBody::new(", "=> ", "=> {", "=> ("] {
            for (_, after) in text.match_indices(before).map(|(at, _)| text.split_at(at + before.len())) {
                let Some((code, _)) =
                    after.trim_start().strip_prefix('"').and_then(|rest| rest.split_once('"'))
                else {
                    continue;
                };
                if before.starts_with("=>") && !is_dotted_code(code) {
                    continue;
                }
                found += 1;
                let documented = lodge_proto::CODES.iter().any(|doc| doc.code == code)
                    || protocol.contains(&format!("`{code}`"));
                assert!(documented, "`{code}` of {} is in no table of codes", file.display());
            }
        }
    }
    assert!(found > 150, "only {found} codes were found");
}

/// Whether a text is two lower-case words with a dot between them.
fn is_dotted_code(text: &str) -> bool {
    let is_word = |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    text.split_once('.').is_some_and(|(noun, what)| is_word(noun) && is_word(what))
}

/// Crates that decide and send codes to clients, which read them from `proto`.
const DECIDING: &[&str] = &["daemon", "engine"];
/// Crates in which an error is a type.
const TYPED: &[&str] = &["daemon", "engine", "exec", "image", "model", "runtime"];

/// Whether a line compares with the code of an error, or has one as a pattern.
fn decides_by_code(line: &str, quoted_codes: &[String]) -> bool {
    let compares = ["code() ==", "code() !=", "data.code ==", "data.code !=", "data.code.as_str()"];
    if compares.iter().any(|comparison| line.contains(comparison)) {
        return true;
    }
    quoted_codes.iter().any(|code| {
        line.split_once(code.as_str()).is_some_and(|(before, after)| {
            let (before, after) = (before.trim_end(), after.trim_start());
            ["==", "!=", "|"].iter().any(|end| before.ends_with(end))
                || before.contains("matches!(")
                || ["==", "!=", "|", "=>"].iter().any(|start| after.starts_with(start))
        })
    })
}

#[test]
fn no_decision_compares_the_code_of_an_error() {
    let codes = lodge_proto::CODES.iter().map(|doc| doc.code);
    // Two that the runtime acts on, and clients never see.
    let codes = codes.chain(["turn.gone", "turn.interrupted"]);
    let quoted_codes: Vec<String> = codes.map(|code| format!("\"{code}\"")).collect();
    for line in [
        r#"Err(error) if error.data.code == "image.not_found" => {"#,
        "if error.code() == CODE {",
        r#""image.damaged" | "registry.not_found" => {"#,
        r#"| "bin.no_platform""#,
        r#"matches!(failure.code, "image.damaged")"#,
    ] {
        assert!(decides_by_code(line, &quoted_codes), "{line}");
    }
    let mut found = Vec::new();
    for name in TYPED {
        let mut files = Vec::new();
        sources(&crates().join(name).join("src"), &mut files);
        files.retain(|file| !file.components().any(|part| part.as_os_str() == "tests"));
        for file in files.iter().filter(|file| !file.ends_with("tests.rs")) {
            let text = std::fs::read_to_string(file).unwrap();
            // Tests compare codes: those are promised to clients.
            let deciding = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            for (at, line) in
                deciding.lines().enumerate().filter(|(_, line)| decides_by_code(line, &quoted_codes))
            {
                found.push(format!("{}:{}: {}", file.display(), at + 1, line.trim()));
            }
        }
    }
    assert!(found.is_empty(), "match on the type of the error instead: {found:#?}");
}
