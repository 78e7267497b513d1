//! What documents say of the source: who may use whom (ARCHITECTURE.md), and the layers of the fence (docs/security.md).

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Crate, and which of ours it may depend on.
const MAY_USE: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("link", &[]),
    ("runtime-messages", &[]),
    ("proto", &["link"]),
    ("store", &["core"]),
    ("exec", &["core", "link"]),
    ("image", &[]),
    ("model", &["core"]),
    ("keeper", &["link"]),
    ("runtime", &["runtime-messages"]),
    ("daemon", &["core", "proto", "store", "exec", "image", "model", "runtime-messages"]),
    ("selftest", &["proto"]),
    ("cli", &["proto", "selftest"]),
];

/// What crates with a promise of their own may take from outside.
const OUTSIDE: &[(&str, &[&str])] = &[
    ("core", &["prost", "thiserror"]),
    ("link", &["libc"]),
    ("keeper", &["libc"]),
    ("runtime", &["libc", "serde", "serde_json"]),
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
    for entry in std::fs::read_dir(crates().join("keeper/src")).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
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
