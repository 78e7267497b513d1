//! Agents of OpenOtters.

use std::collections::BTreeMap;

use lodge_image::agentfile::{LoadError, LoadedAgentfile, load_packed};
use lodge_image::oci::{
    AgentKind, BadImage, Blob, Descriptor, ForeignImage, Manifest, MediaDialect, PackedImage, TITLE,
    pack_agent, read_agent, read_agent_head, unpack_foreign,
};

use crate::{PackedImages, bytes_of, inline};

const AGENT: &str = "application/vnd.openotters.agent.v1";
const CONFIG: &str = "application/vnd.openotters.agent.config.v1+json";
const AGENTFILE: &str = "application/vnd.openotters.agentfile";
const CONTEXT: &str = "application/vnd.openotters.context.v1";
const ADDED: &str = "application/octet-stream";
const SOURCE: &str = "# syntax=openotters/agentfile:1\nFROM base\nNAME otter\nCONTEXT SOUL file://deep/soul.txt\n\
    CONTEXT TAIL <<E\nwag\nE\nADD data/plan.csv /etc/data/plan.csv \"the plan\"\nBIN rg ghcr.io/openotters/tools/rg\n";

fn image(layers: &[(&str, &str, &[u8])]) -> (Manifest, PackedImage) {
    let mut blobs = vec![Blob::new(CONFIG, b"{\"from\":\"base\"}".to_vec())];
    let mut parts = Vec::new();
    for (media_type, title, bytes) in layers {
        let blob = Blob::new(*media_type, bytes.to_vec());
        let annotations = BTreeMap::from([(TITLE.to_owned(), (*title).to_owned())]);
        parts.push(Descriptor { annotations, ..blob.descriptor() });
        blobs.push(blob);
    }
    let manifest = Manifest {
        dialect: MediaDialect::Oci,
        artifact_type: Some(AGENT.to_owned()),
        config: blobs[0].descriptor(),
        layers: parts,
        annotations: BTreeMap::new(),
    };
    let digest = blobs[0].digest;
    (manifest, PackedImage { digest, blobs })
}

fn otter() -> Vec<(&'static str, &'static str, &'static [u8])> {
    vec![
        (AGENTFILE, "Agentfile", SOURCE.as_bytes()),
        (CONTEXT, "SOUL.md", b"swim"),
        (CONTEXT, "TAIL.md", b"wag"),
        (ADDED, "plan.csv", b"a,b"),
        ("application/x-new", "../../unknown", b"?"),
    ]
}

fn unpack(layers: &[(&str, &str, &[u8])]) -> Result<ForeignImage, BadImage> {
    let (manifest, packed) = image(layers);
    unpack_foreign(&manifest, &mut |part| bytes_of(&packed, part))
}

fn load(foreign: ForeignImage) -> Result<LoadedAgentfile, LoadError> {
    let base = inline("FROM scratch\nMODEL openai/gpt\nCONTEXT SOUL <<E\nold\nE\n");
    load_packed(&foreign.source, foreign.files, &PackedImages(BTreeMap::from([("base".to_owned(), base)])))
}

#[test]
fn a_foreign_agent_is_loaded_over_its_parents_with_the_files_of_its_image() {
    let loaded = load(unpack(&otter()).expect("good")).expect("good");
    let contexts: Vec<_> =
        loaded.contexts.iter().map(|text| (text.name.as_str(), text.text.as_str())).collect();
    assert_eq!(contexts, [("SOUL", "swim"), ("TAIL", "wag")]);
    assert_eq!((loaded.files[0].name.as_str(), loaded.files[0].bytes.as_slice()), ("plan.csv", &b"a,b"[..]));
    assert_eq!((loaded.from.as_deref(), loaded.parents), (Some("base"), 1));
    assert_eq!(
        loaded.agentfile.model.as_ref().map(|model| model.value.to_string()),
        Some("openai/gpt".to_owned())
    );
    assert!(loaded.agentfile.bins[0].source.to_string().contains("rg:latest@sha256:"));
    assert!(pack_agent(&loaded).is_ok());
}

#[test]
fn a_foreign_agent_is_known_as_one_and_is_not_read_like_our_own() {
    let (manifest, packed) = image(&otter());
    let config = bytes_of(&packed, &manifest.config).expect("there");
    assert_eq!(AgentKind::of(&manifest), Some(AgentKind::Foreign));
    assert!(read_agent_head(&manifest, &config).expect("good").whole);
    assert!(read_agent(&manifest, &config, &mut |part| bytes_of(&packed, part)).is_err());
    let ours = Manifest { artifact_type: Some("application/vnd.lodge.agent.v1".to_owned()), ..manifest };
    assert_eq!(AgentKind::of(&ours), None);
    assert!(unpack_foreign(&ours, &mut |part| bytes_of(&packed, part)).is_err());
}

#[test]
fn foreign_images_that_could_write_elsewhere_or_hold_too_much_are_refused() {
    let big = vec![b'x'; 17 << 20];
    for (layer, because) in [
        ((ADDED, "../plan.csv", &b"x"[..]), "cannot be a file"),
        ((ADDED, "/etc/passwd", b"x"), "cannot be a file"),
        ((ADDED, "", b"x"), "cannot be a file"),
        ((CONTEXT, "a/b.md", b"x"), "cannot be a file"),
        ((CONTEXT, "SOUL", b"x"), "cannot be a file"),
        ((CONTEXT, "SOUL.md", b"x"), "twice"),
        ((ADDED, "plan.csv", b"x"), "twice"),
        ((AGENTFILE, "Agentfile", b"FROM scratch"), "two Agentfiles"),
        ((CONTEXT, "X.md", b"\xff"), "UTF-8"),
        ((CONTEXT, "X.md", &big[..2 << 20]), "at most"),
        ((ADDED, "x", &big), "at most"),
    ] {
        let mut layers = otter();
        layers.push(layer);
        let why = unpack(&layers).expect_err("refused").to_string();
        assert!(why.contains(because), "{why}");
    }
    assert!(unpack(&otter()[1..]).expect_err("refused").to_string().contains("no Agentfile"));
    let many: Vec<String> = (0..5).map(|nth| format!("f{nth}")).collect();
    let mut layers = otter();
    layers.extend(many.iter().map(|name| (ADDED, name.as_str(), &big[..15 << 20])));
    assert!(unpack(&layers).expect_err("refused").to_string().contains("together"));
}

#[test]
fn an_agentfile_that_names_what_the_image_lacks_or_we_refuse_is_not_loaded() {
    let missing = load(unpack(&otter()[..3]).expect("good")).expect_err("refused");
    assert_eq!(missing.code(), "agentfile.file_unreadable");
    let reserved = unpack(&[(AGENTFILE, "Agentfile", b"FROM scratch\nENV PATH=/x\n")]).expect("good");
    assert_eq!(load(reserved).expect_err("refused").code(), "env.key_reserved");
    let on_disk = unpack(&[(AGENTFILE, "Agentfile", b"FROM ./parent\n")]).expect("good");
    assert_eq!(load(on_disk).expect_err("refused").code(), "agentfile.no_directory");
}
