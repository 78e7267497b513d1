//! Images of agents: made always the same, and read as they were made.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use lodge_image::agentfile::{
    ADD_MAX, AddedFile, BinSource, ContextText, LoadedAgentfile, PackedFiles, load_packed,
};
use lodge_image::oci::{
    ADDED, AGENT, AGENT_CONFIG, AGENTFILE, AgentKind, CONTEXT, LAYERS_MAX, TITLE, pack_agent, read_agent_head,
};

use crate::{OciRandom, PackedImages, bytes_of, generate, inline, on_disk, opened, placeless, read};

const CASES: u32 = 1_500;
const SEED: u64 = 0x0dd5_eed0_fa6e_2700;
const FIXED: &str = include_str!("fixed/Agentfile");
const FIXED_CONFIG: &str = include_str!("fixed/config.json");
const FIXED_DIGEST: &str = include_str!("fixed/digest");

fn fixed() -> LoadedAgentfile {
    on_disk(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oci/fixed")))
}

#[test]
fn every_agent_is_read_as_it_was_packed_and_packs_to_the_same_bytes() {
    let mut random = OciRandom(SEED);
    let (mut with_parents, mut with_files) = (0, 0);
    for case in 0..CASES {
        let loaded = generate::loaded(&mut random);
        with_parents += usize::from(loaded.parents > 0);
        with_files += usize::from(!loaded.files.is_empty());
        let packed = pack_agent(&loaded).unwrap_or_else(|bad| panic!("case {case}: {bad}"));
        assert_eq!(pack_agent(&loaded).as_ref(), Ok(&packed), "case {case}");
        let again = read(&packed).unwrap_or_else(|bad| panic!("case {case}: {bad}"));
        assert_eq!(pack_agent(&again), Ok(packed), "case {case}");
        assert_eq!(again, placeless(loaded), "case {case}");
    }
    assert!(with_parents > 300 && with_files > 300, "{with_parents} with parents, {with_files} with files");
}

/// The rules for lines and for configs are the same ones.
#[test]
fn every_valid_agentfile_can_be_packed_and_read() {
    const PIECES: [&str; 16] = [
        " ", "\"", "\"x\"", "=", "host:", "sha256:", "@", "\n", ",", "safe", "!", "9", "é", "\\u0001",
        "none", "/",
    ];
    let mut files = PackedFiles::default();
    files.contexts.insert("NOTES".to_owned(), String::new());
    files.files.insert("plan.csv".to_owned(), Vec::new());
    let mut random = OciRandom(SEED);
    let mut packed = 0;
    for _ in 0..CASES * 4 {
        let mut source = FIXED.to_owned();
        for _ in 0..=random.below(3) {
            let at = random.below(source.len());
            let at = (at..).find(|at| source.is_char_boundary(*at)).expect("the end is one");
            match random.below(2) {
                0 => source.insert_str(at, random.pick(&PIECES)),
                _ => drop(source.drain(at..).next()),
            }
            if random.below(8) == 0 {
                source.truncate(at);
            }
        }
        let Ok(loaded) = load_packed(source.as_bytes(), files.clone(), &PackedImages::default()) else {
            continue;
        };
        let image = pack_agent(&loaded).unwrap_or_else(|bad| panic!("{bad} in:\n{source}"));
        assert_eq!(read(&image), Ok(placeless(loaded)), "{source}");
        packed += 1;
    }
    assert!(packed > 500, "{packed}");
}

#[test]
fn a_fixed_agent_is_a_fixed_image() {
    let packed = pack_agent(&fixed()).expect("good");
    let (manifest, config) = opened(&packed);
    assert_eq!(String::from_utf8(config).expect("text"), FIXED_CONFIG.trim_end());
    assert_eq!(packed.digest.to_string(), FIXED_DIGEST.trim_end());
    assert_eq!(
        (manifest.artifact_type.as_deref(), manifest.config.media_type.as_str()),
        (Some(AGENT), AGENT_CONFIG)
    );
    assert_eq!(AgentKind::of(&manifest), Some(AgentKind::Own));
    let layers: Vec<_> =
        manifest.layers.iter().map(|layer| (layer.media_type.as_str(), layer.title())).collect();
    assert_eq!(
        layers,
        [
            (AGENTFILE, Some("Agentfile")),
            (CONTEXT, Some("SOUL.md")),
            (CONTEXT, Some("NOTES.md")),
            (ADDED, Some("plan.csv")),
        ]
    );
    let annotations: Vec<_> =
        manifest.annotations.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    assert_eq!(annotations, [("description", "does everything"), (TITLE, "everything")]);
    assert_eq!(bytes_of(&packed, &manifest.layers[0]).expect("there"), FIXED.as_bytes());
}

#[test]
fn the_directory_the_mode_and_the_time_of_files_do_not_matter() {
    let base = std::env::temp_dir().join(format!("lodge-image-same-{}", std::process::id()));
    let there = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oci/fixed"));
    for name in ["Agentfile", "notes.md", "plan.csv"] {
        fs::create_dir_all(&base).expect("create");
        fs::write(base.join(name), fs::read(there.join(name)).expect("read")).expect("write");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(base.join(name), mode).expect("chmod");
        let file = fs::File::options().write(true).open(base.join(name)).expect("open");
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).expect("touch");
    }
    let elsewhere = on_disk(&base);
    fs::remove_dir_all(&base).expect("remove");
    assert_eq!(pack_agent(&elsewhere), pack_agent(&fixed()));
}

#[test]
fn the_head_of_an_image_is_all_of_it_but_texts_and_bytes() {
    let loaded = fixed();
    let packed = pack_agent(&loaded).expect("good");
    let (manifest, config) = opened(&packed);
    let head = read_agent_head(&manifest, &config).expect("good");
    assert!(!head.whole);
    assert_eq!(head.files, manifest.layers[3..]);
    assert_eq!(head.loaded.files, [AddedFile { name: "plan.csv".to_owned(), bytes: Vec::new() }]);
    let contexts: Vec<_> = head.loaded.contexts.iter().map(|context| context.name.as_str()).collect();
    assert_eq!(contexts, ["SOUL", "NOTES"]);
    assert_eq!(head.loaded.agentfile.bins, placeless(loaded).agentfile.bins);
}

#[test]
fn what_could_not_be_read_again_is_not_packed() {
    let good = || inline("FROM scratch\nBIN rg rg\nCONTEXT A <<E\nx\nE\n");
    let refused = |change: &dyn Fn(&mut LoadedAgentfile), because: &str| {
        let mut loaded = good();
        change(&mut loaded);
        let why = pack_agent(&loaded).expect_err("refused").to_string();
        assert!(why.contains(because), "{why}");
    };
    assert!(pack_agent(&good()).is_ok());
    refused(
        &|loaded| loaded.agentfile.bins[0].source = BinSource::Image("rg:latest".to_owned()),
        "no digest",
    );
    refused(&|loaded| loaded.contexts.clear(), "not those");
    refused(&|loaded| loaded.files.push(AddedFile { name: "x".to_owned(), bytes: Vec::new() }), "not those");
    refused(&|loaded| loaded.parents = 11, "parents");
    refused(&|loaded| loaded.source = vec![b' '; 2 << 20], "bytes");
    refused(&|loaded| loaded.contexts[0].text = "x".repeat(2 << 20), "bytes");
    refused(&|loaded| loaded.from = Some("/etc".to_owned()), "FROM");
}

#[test]
fn agents_with_too_much_are_not_packed() {
    let mut many = inline("FROM scratch\nCONTEXT A <<E\nx\nE\n");
    let context = many.agentfile.contexts[0].clone();
    for nth in 0..LAYERS_MAX {
        let name = format!("C{nth}");
        many.contexts.push(ContextText { name: name.clone(), description: None, text: String::new() });
        many.agentfile.contexts.push(lodge_image::agentfile::ContextSection { name, ..context.clone() });
    }
    assert!(pack_agent(&many).expect_err("refused").to_string().contains("at most 1024"));
    let mut large = fixed();
    let (add, max) = (large.agentfile.adds[0].clone(), usize::try_from(ADD_MAX).expect("small"));
    large.files[0].bytes = vec![0; max];
    for name in ["b", "c", "d"] {
        large.agentfile.adds.push(lodge_image::agentfile::Add { name: name.to_owned(), ..add.clone() });
        large.files.push(AddedFile { name: name.to_owned(), bytes: vec![0; max] });
    }
    assert!(pack_agent(&large).expect_err("refused").to_string().contains("together"));
}

#[test]
fn parts_with_the_same_contents_are_one_blob() {
    let packed =
        pack_agent(&inline("FROM scratch\nCONTEXT A <<E\nx\nE\nCONTEXT B <<E\nx\nE\n")).expect("good");
    assert_eq!(packed.blobs.len(), 4);
    assert_eq!(read(&packed).expect("good").contexts.len(), 2);
    let digests: BTreeMap<_, _> = packed.blobs.iter().map(|blob| (blob.digest, ())).collect();
    assert_eq!(digests.len(), packed.blobs.len());
}
