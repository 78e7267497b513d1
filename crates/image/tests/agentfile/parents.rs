//! FROM: parents on disk and on the shelf.
//!
//! Owns: which chains are followed, and how they end. Never: tests what a merge does to single instructions.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use lodge_image::agentfile::{LoadError, LoadedAgentfile, PARENTS_MAX};

use crate::{AgentfileImages, Args, args};

/// A directory of Agentfiles, gone when the test ends.
struct AgentfileTree {
    root: PathBuf,
    shelf: AgentfileImages,
}

impl AgentfileTree {
    fn of(files: &[(&str, &str)]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("lodge-parents-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let root = std::env::temp_dir().join(name);
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("create directories");
            fs::write(path, text).expect("write");
        }
        Self { root, shelf: AgentfileImages::default() }
    }

    fn shelve(&mut self, name: &str, source: &str) {
        let image = lodge_image::agentfile::load_inline(source.as_bytes(), &Args::new(), &self.shelf);
        self.shelf.0.insert(name.to_owned(), image.expect("a good image"));
    }

    fn load_with(&self, path: &str, args: &Args) -> Result<LoadedAgentfile, LoadError> {
        lodge_image::agentfile::load_dir(&self.root.join(path), args, &self.shelf)
    }

    fn good(&self, path: &str) -> LoadedAgentfile {
        self.load_with(path, &Args::new()).unwrap_or_else(|error| panic!("{error}"))
    }

    fn bad(&self, path: &str) -> LoadError {
        self.load_with(path, &Args::new()).expect_err("refused")
    }
}

impl Drop for AgentfileTree {
    fn drop(&mut self) {
        // A leftover directory is harmless.
        drop(fs::remove_dir_all(&self.root));
    }
}

fn texts(loaded: &LoadedAgentfile) -> Vec<(&str, &str)> {
    loaded.contexts.iter().map(|context| (context.name.as_str(), context.text.as_str())).collect()
}

#[test]
fn a_parent_on_disk_brings_its_own_files_from_its_own_directory() {
    let tree = AgentfileTree::of(&[
        (
            "base/Agentfile",
            "FROM scratch\nMODEL a/b\nNAME base\nCONTEXT SOUL file://soul.md\nADD data x\nADD data y\n",
        ),
        ("base/soul.md", "base soul"),
        ("base/data", "of the base"),
        ("child/Agentfile", "FROM ../base\nNAME child\nCONTEXT MORE <<E\nmore\nE\nADD data y\n"),
        ("child/data", "of the child"),
    ]);
    for from in ["../base", "../base/", "../base/Agentfile", "./../base/.", ".././base"] {
        fs::write(
            tree.root.join("child/Agentfile"),
            format!("FROM {from}\nNAME child\nCONTEXT MORE <<E\nmore\nE\nADD data y\n"),
        )
        .expect("write");
        let loaded = tree.good("child");
        assert_eq!((loaded.from.as_deref(), loaded.own_name.as_deref()), (Some(from), Some("child")));
        assert_eq!(loaded.parents, 1);
        assert_eq!(loaded.agentfile.name.as_ref().map(|name| name.value.as_str()), Some("child"));
        assert_eq!(
            loaded.agentfile.model.as_ref().map(|model| model.value.to_string()),
            Some("a/b".to_owned())
        );
        assert_eq!(texts(&loaded), [("SOUL", "base soul"), ("MORE", "more")]);
        let files: Vec<_> =
            loaded.files.iter().map(|file| (file.name.as_str(), file.bytes.as_slice())).collect();
        assert_eq!(files, [("x", &b"of the base"[..]), ("y", b"of the child")]);
        assert!(loaded.source.starts_with(b"FROM ."), "the source is the child's own");
    }
}

#[test]
fn an_image_of_the_shelf_is_a_parent_with_everything_it_was_built_from() {
    let mut tree = AgentfileTree::of(&[("Agentfile", "FROM base:v1\nCONTEXT SOUL <<E\nmine\nE\nENV K=2\n")]);
    tree.shelve("root", "FROM scratch\nNAME root\nCONTEXT POLICIES <<E\nroot\nE\nENV K=1\nENV L=1\n");
    tree.shelve("base:v1", "FROM root\nCONTEXT SOUL <<E\nbase\nE\nRUNTIME host:loop\nCONFIG a=1\n");
    let loaded = tree.good("");
    assert_eq!(texts(&loaded), [("POLICIES", "root"), ("SOUL", "mine")]);
    let envs: Vec<_> =
        loaded.agentfile.envs.iter().map(|env| (env.key.as_str(), env.value.as_str())).collect();
    assert_eq!(envs, [("K", "2"), ("L", "1")]);
    assert_eq!((loaded.parents, loaded.agentfile.configs.len()), (2, 1));
    assert_eq!(loaded.own_name, None);
}

#[test]
fn a_runtime_of_the_child_drops_the_settings_of_every_parent() {
    let tree = AgentfileTree::of(&[
        ("a/Agentfile", "FROM scratch\nRUNTIME host:one\nCONFIG old=1\n"),
        ("b/Agentfile", "FROM ../a\nCONFIG older=1\n"),
        ("c/Agentfile", "FROM ../b\nRUNTIME host:two\nCONFIG new=1\n"),
    ]);
    let keys = |path: &str| -> Vec<String> {
        tree.good(path).agentfile.configs.into_iter().map(|config| config.key).collect()
    };
    assert_eq!(keys("b"), ["old", "older"]);
    assert_eq!(keys("c"), ["new"]);
}

#[test]
fn every_mistake_of_a_chain_is_reported_with_the_file_it_stands_in() {
    let tree = AgentfileTree::of(&[
        ("base/deep/Agentfile", "FROM scratch\nNAME ok\nWAT\n"),
        ("base/Agentfile", "FROM ./deep\nADD gone\n"),
        ("child/Agentfile", "FROM ../base\nADD lost\n"),
    ]);
    let LoadError::Mistakes(errors) = tree.bad("child") else { panic!("no mistakes") };
    let found: Vec<String> = errors
        .iter()
        .map(|error| {
            let file = std::path::Path::new(&error.file).strip_prefix(&tree.root).expect("as it was named");
            format!("{}:{}:{} {}", file.display(), error.line, error.column, error.code())
        })
        .collect();
    let expected = [
        "child/Agentfile:2:5 agentfile.file_unreadable",
        "base/Agentfile:2:5 agentfile.file_unreadable",
        "base/deep/Agentfile:3:1 agentfile.unknown_instruction",
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_chain_that_bites_its_tail_is_refused_with_the_chain() {
    let tree = AgentfileTree::of(&[
        ("a/Agentfile", "FROM ../b\n"),
        ("b/Agentfile", "FROM ../c/Agentfile\n"),
        ("c/Agentfile", "FROM ../b\n"),
        ("self/Agentfile", "FROM .\n"),
    ]);
    let error = tree.bad("a");
    assert_eq!(error.code(), "agentfile.parent_cycle");
    let named = |name: &str| format!("`{}/{name}/Agentfile`", tree.root.display());
    let told = ["b", "c", "b"].map(named).join(" → ");
    assert!(error.to_string().contains(&told), "{error}");
    assert_eq!(tree.bad("self").code(), "agentfile.parent_cycle");
    symlink(tree.root.join("a"), tree.root.join("other-name")).expect("link");
    fs::write(tree.root.join("c/Agentfile"), "FROM ../other-name\n").expect("write");
    assert_eq!(tree.bad("a").code(), "agentfile.parent_cycle", "a link does not make it another file");
}

#[test]
fn as_many_parents_as_allowed_are_followed_and_no_more() {
    let files: Vec<(String, String)> = (0..=PARENTS_MAX + 1)
        .map(|n| {
            let from = if n == 0 { "scratch".to_owned() } else { format!("../{}", n - 1) };
            (format!("{n}/Agentfile"), format!("FROM {from}\nLABEL l{n}=x\n"))
        })
        .collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    let mut tree = AgentfileTree::of(&files);
    let loaded = tree.good(&PARENTS_MAX.to_string());
    assert_eq!((loaded.parents, loaded.agentfile.labels.len()), (PARENTS_MAX, PARENTS_MAX + 1));
    let error = tree.bad(&(PARENTS_MAX + 1).to_string());
    assert_eq!(error.code(), "agentfile.too_many_parents");
    assert!(error.to_string().contains("/11/Agentfile` → `"), "{error}");
    tree.shelf.0.insert("deep".to_owned(), loaded);
    fs::write(tree.root.join("0/Agentfile"), "FROM deep\n").expect("write");
    let error = tree.bad("0");
    assert_eq!(error.code(), "agentfile.too_many_parents");
    assert!(error.to_string().contains("/0/Agentfile` → `deep` → `10 more`"), "{error}");
}

#[test]
fn a_parent_that_cannot_be_had_is_named_where_it_is_asked_for() {
    let tree = AgentfileTree::of(&[("empty/x", ""), ("pipe/x", "")]);
    for (from, code) in [
        ("nobody", "agentfile.parent_not_found"),
        ("nobody:v1", "agentfile.parent_not_found"),
        ("torn", "agentfile.parent_unreadable"),
        ("./nowhere", "agentfile.file_unreadable"),
        ("./empty", "agentfile.not_found"),
        ("./empty/y", "agentfile.file_unreadable"),
        ("./empty/x/y", "agentfile.file_unreadable"),
        ("../../../../../../../../dev/zero", "agentfile.file_not_regular"),
        ("/etc", "agentfile.bad_parent_path"),
        ("~/base", "agentfile.bad_parent_path"),
        ("base/../x", "agentfile.bad_image_ref"),
        ("...", "agentfile.bad_image_ref"),
    ] {
        fs::write(tree.root.join("Agentfile"), format!("FROM {from}\n")).expect("write");
        let error = tree.bad("");
        assert_eq!(error.code(), code, "{from}");
        let place = format!("{}/Agentfile:1:6: ", tree.root.display());
        assert!(error.to_string().starts_with(&place), "{error}");
    }
}

#[test]
fn an_agentfile_of_a_parent_that_is_a_link_out_of_it_is_refused() {
    let tree =
        AgentfileTree::of(&[("secret", "FROM scratch\n"), ("base/x", ""), ("Agentfile", "FROM ./base\n")]);
    symlink(tree.root.join("secret"), tree.root.join("base/Agentfile")).expect("link");
    assert_eq!(tree.bad("").code(), "agentfile.file_outside");
}

#[test]
fn a_build_argument_may_belong_to_a_parent_on_disk_and_not_to_one_that_is_built() {
    let mut tree = AgentfileTree::of(&[
        ("base/Agentfile", "FROM scratch\nARG who=otter\nLABEL who=${who}\n"),
        ("child/Agentfile", "FROM ../base\nARG own=1\nLABEL own=${own}${who}\n"),
        ("of-image/Agentfile", "FROM base\n"),
    ]);
    let given = args(&[("who", "seal"), ("own", "2")]);
    let labels: Vec<String> = tree
        .load_with("child", &given)
        .expect("loads")
        .agentfile
        .labels
        .into_iter()
        .map(|l| l.value)
        .collect();
    assert_eq!(labels, ["seal", "2${who}"], "an ARG counts in its own file alone");
    tree.shelve("base", "FROM scratch\nARG who=otter\n");
    let error = tree.load_with("of-image", &args(&[("who", "seal")])).expect_err("refused");
    assert_eq!(error.code(), "agentfile.undeclared_arg");
}

#[test]
fn the_files_of_all_parents_count_together() {
    let mut tree = AgentfileTree::of(&[
        ("base/Agentfile", "FROM scratch\nADD a a1\nADD a a2\n"),
        ("child/Agentfile", "FROM ../base\nADD a a3\nADD a a4\n"),
        ("more/Agentfile", "FROM ../child\nADD b\n"),
        ("more/b", "1"),
        ("of-image/Agentfile", "FROM full\nADD b\n"),
        ("of-image/b", "1"),
    ]);
    for place in ["base", "child"] {
        let file = fs::File::create(tree.root.join(place).join("a")).expect("create");
        file.set_len(lodge_image::agentfile::ADD_MAX).expect("grow");
    }
    let full = tree.good("child");
    assert_eq!(tree.bad("more").code(), "agentfile.files_too_large");
    tree.shelf.0.insert("full".to_owned(), full);
    assert_eq!(tree.bad("of-image").code(), "agentfile.files_too_large");
}

#[test]
fn long_chains_of_long_files_are_flattened_soon() {
    let labels = |n: usize| -> String { (0..4_000).map(|l| format!("LABEL l{n}x{l}=x\n")).collect() };
    let files: Vec<(String, String)> = (0..=PARENTS_MAX)
        .map(|n| {
            let from = if n == 0 { "scratch".to_owned() } else { format!("../{}", n - 1) };
            (format!("{n}/Agentfile"), format!("FROM {from}\n{}", labels(n)))
        })
        .collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    let tree = AgentfileTree::of(&files);
    assert_eq!(tree.good(&PARENTS_MAX.to_string()).agentfile.labels.len(), 4_000 * (PARENTS_MAX + 1));
}

#[test]
fn tools_that_cannot_be_had_are_reported_with_their_lines_and_all_at_once() {
    let source = "FROM scratch\nRUNTIME torn\nBIN good rg:1\nBIN bad nobody\nBIN own host:sh\n";
    let errors = match crate::load_inline(source.as_bytes(), &args(&[])) {
        Err(LoadError::Mistakes(errors)) => errors,
        other => panic!("{other:?}"),
    };
    let told: Vec<(u32, &str)> = errors.iter().map(|error| (error.line, error.code())).collect();
    assert_eq!(told, [(2, "agentfile.bin_unreadable"), (4, "agentfile.bin_not_found")]);
    assert!(errors.iter().all(|error| !error.hint().is_empty()));
}
