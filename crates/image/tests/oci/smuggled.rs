//! Configs and layers that no build could have made.

use lodge_image::agentfile::{LINE_MAX, LoadedAgentfile};
use lodge_image::oci::{BadImage, Blob, Manifest, TITLE, pack_agent, read_agent};
use serde_json::{Value, json};

use crate::{bytes_of, inline, opened};

const SOURCE: &str = "FROM scratch\nCONTEXT SOUL <<E\nx\nE\nCONFIG a=1\nENV A=1\nNAME otter\n";

/// Reads an image of which the manifest and the config were changed.
fn read_changed(
    config: &dyn Fn(&mut Value),
    manifest: &dyn Fn(&mut Manifest),
) -> Result<LoadedAgentfile, BadImage> {
    let packed = pack_agent(&inline(SOURCE)).expect("good");
    let (mut changed, bytes) = opened(&packed);
    let mut value: Value = serde_json::from_slice(&bytes).expect("JSON");
    config(&mut value);
    manifest(&mut changed);
    let bytes = serde_json::to_vec(&value).expect("JSON");
    read_agent(&changed, &bytes, &mut |part| bytes_of(&packed, part))
}

#[track_caller]
fn refused(key: &str, value: Value, because: &str) {
    let why = match read_changed(&|config| config[key] = value.clone(), &|_| {}) {
        Ok(loaded) => panic!("read as {loaded:?}"),
        Err(bad) => bad.to_string(),
    };
    assert!(why.contains(because), "{key}: {why}");
    assert!(why.len() < 500 && !why.contains(char::is_control), "{why:?}");
}

#[test]
fn fields_that_nobody_knows_are_ignored() {
    let read = read_changed(&|config| config["new"] = json!({"x": [1]}), &|_| {});
    assert_eq!(read.expect("good").contexts[0].text, "x");
}

#[test]
fn an_image_holds_no_value_that_its_agentfile_could_not() {
    let long = "x".repeat(LINE_MAX + 1);
    let context = |name: &str| json!([{"name": name}]);
    for (key, value, because) in [
        ("envs", json!([{"key": "PATH", "value": "/x"}]), "reserved"),
        ("envs", json!([{"key": "LODGE_TOKEN", "value": "/x"}]), "reserved"),
        ("envs", json!([{"key": "OPENAI_API_KEY", "value": "/x"}]), "belongs to a provider"),
        ("envs", json!([{"key": "a=b", "value": "/x"}]), "not an environment key"),
        ("envs", json!([{"key": "A", "value": "a\0b"}]), "its ENV is refused"),
        ("envs", json!([{"key": "A", "value": long}]), "too long"),
        ("envs", json!([{"key": "A", "value": ""}, {"key": "A", "value": ""}]), "`A` occurs twice"),
        ("configs", json!([{"key": "A_B", "value": "1"}]), "not a CONFIG key"),
        ("configs", json!([{"key": "a", "value": "1", "required": true}]), "required"),
        ("configs", json!([{"key": "a", "value": "01", "type": "int"}]), "not of its type"),
        ("configs", json!([{"key": "a", "value": "NaN", "type": "float"}]), "not of its type"),
        ("configs", json!([{"key": "a", "value": "inf", "type": "float"}]), "not of its type"),
        ("configs", json!([{"key": "a", "value": "x", "type": "bool"}]), "not of its type"),
        ("configs", json!([{"key": "a", "value": "x", "type": "list"}]), "cannot be read"),
        ("contexts", context("AGENT"), "reserved"),
        ("contexts", context("../x"), "cannot be the name of a context"),
        ("contexts", json!([{"name": "SOUL", "file": "/etc/passwd"}]), "is absolute"),
        ("contexts", json!([{"name": "SOUL", "file": "a/../../b"}]), "leaves the directory"),
        ("adds", json!([{"name": "..", "src": "x"}]), "cannot be the name of an added file"),
        ("adds", json!([{"name": "x/y", "src": "x"}]), "cannot be the name of an added file"),
        ("adds", json!([{"name": "x", "src": "../x"}]), "leaves the directory"),
        ("bins", json!([{"name": "job_wait", "source": "host:x"}]), "a tool that every agent has"),
        ("bins", json!([{"name": "/bin/x", "source": "host:x"}]), "cannot be the name of a tool"),
        ("bins", json!([{"name": "x", "source": "host:../x"}]), "not a program of the host"),
        ("bins", json!([{"name": "x", "source": "host:/a b"}]), "its BIN is refused"),
        ("bins", json!([{"name": "x", "source": "rg:latest"}]), "it has no digest"),
        ("bins", json!([{"name": "x", "source": "rg@sha256:12"}]), "not an image reference"),
        ("runtime", json!(format!("host@sha256:{}", "0".repeat(64))), "not an image reference"),
        ("runtime", json!("loop"), "it has no digest"),
        ("runtime", json!("host:"), "not a program of the host"),
        ("name", json!("../otter"), "cannot be the name of an agent"),
        ("model", json!("gpt"), "not a model"),
        ("model", json!("a/${b}"), "not a model"),
        ("model", json!("a/b c"), "its MODEL is refused"),
        ("exec", json!(["a\0"]), "its EXEC is refused"),
        ("exec", json!(vec!["a"; 2_000]), "too many words"),
        ("labels", json!([{"key": "a b", "value": ""}]), "not a LABEL key"),
        ("args", json!([{"key": "1"}]), "not an ARG key"),
        ("capabilities", json!(["everything"]), "no capability `everything`"),
        ("capabilities", json!(["note_save", "note_save"]), "twice"),
        ("limits", json!([{"key": "memory", "value": "0"}]), "not a value for the limit memory"),
        ("limits", json!([{"key": "memory", "value": "1g"}, {"key": "memory", "value": "2g"}]), "twice"),
        ("limits", json!([{"key": "sky", "value": "1"}]), "unknown limit"),
        ("network", json!([]), "the list of hosts is empty"),
        ("network", json!(["none", "host"]), "mixes"),
        ("network", json!(["127.0.0.1"]), "no list opens"),
        ("network", json!(["169.254.169.254"]), "no list opens"),
        ("network", json!(["a b"]), "not a host"),
        ("network", json!(vec!["a.example"; 10_000]), "too long"),
        ("mcps", json!([{"name": "m"}]), "neither"),
        ("mcps", json!([{"name": "m", "url": "https://a", "program": "host:x"}]), "neither"),
        ("mcps", json!([{"name": "m", "url": "file:///etc"}]), "not a URL"),
        ("skills", json!(["../x"]), "not an image reference"),
        ("services", json!([{"name": "A", "image": "x"}]), "cannot be the name of a service"),
        ("services", json!([{"name": "a", "image": "x", "healthcheck": " "}]), "is empty"),
        ("schedules", json!([{"cron": "now", "prompt": "x"}]), "not a cron"),
        ("schedules", json!([{"cron": "@daily", "prompt": " "}]), "is empty"),
        ("ons", json!([{"pattern": "", "prompt": "x"}]), "is empty"),
        ("ons", json!(vec![json!({"pattern": "a", "prompt": "x"}); 5_000]), "more than 4096"),
        ("labels", json!([["a", "b"]]), "expected an object"),
        ("from", json!("/etc"), "its FROM is refused"),
        ("from", json!(null), "cannot be read"),
        ("parents", json!(11), "at most 10"),
        ("parents", json!(-1), "cannot be read"),
    ] {
        refused(key, value, because);
    }
}

#[test]
fn a_config_and_its_layers_name_the_same_contexts_and_files() {
    let changed = |config: &dyn Fn(&mut Value), manifest: &dyn Fn(&mut Manifest)| {
        read_changed(config, manifest).expect_err("refused").to_string()
    };
    let lacks = changed(&|config| config["contexts"] = json!([{"name": "SOUL"}, {"name": "B"}]), &|_| {});
    assert!(lacks.contains("2 layers, and its config names 3"), "{lacks}");
    let more = changed(&|_| {}, &|manifest| manifest.layers.push(manifest.layers[1].clone()));
    assert!(more.contains("3 layers, and its config names 2"), "{more}");
    let other = changed(&|config| config["contexts"][0]["name"] = json!("BODY"), &|_| {});
    assert!(other.contains("no layer `BODY.md`"), "{other}");
    let swapped = changed(&|_| {}, &|manifest| manifest.layers.swap(0, 1));
    assert!(swapped.contains("no layer `Agentfile`"), "{swapped}");
    let kind = changed(&|_| {}, &|manifest| manifest.layers[1].media_type = "text/plain".to_owned());
    assert!(kind.contains("no layer `SOUL.md`"), "{kind}");
    let title = changed(&|_| {}, &|manifest| drop(manifest.layers[1].annotations.remove(TITLE)));
    assert!(title.contains("no layer `SOUL.md`"), "{title}");
    let large = changed(&|_| {}, &|manifest| manifest.layers[1].size = 2 << 20);
    assert!(large.contains("at most"), "{large}");
    let size = changed(&|_| {}, &|manifest| manifest.layers[1].size = 2);
    assert!(size.contains("has 1 bytes, not 2"), "{size}");
    let gone = changed(&|_| {}, &|manifest| manifest.layers[1].digest = Blob::new("", Vec::new()).digest);
    assert!(gone.contains("cannot be read"), "{gone}");
    let kind = changed(&|_| {}, &|manifest| manifest.artifact_type = Some("a/b".to_owned()));
    assert!(kind.contains("not the image of an agent"), "{kind}");
}

#[test]
fn texts_that_are_none_are_refused() {
    let packed = pack_agent(&inline(SOURCE)).expect("good");
    let (manifest, config) = opened(&packed);
    for bad in 0..manifest.layers.len() {
        let why = read_agent(&manifest, &config, &mut |part| {
            let bytes = bytes_of(&packed, part)?;
            Ok(if part == &manifest.layers[bad] { vec![0xff; bytes.len()] } else { bytes })
        });
        assert!(why.expect_err("refused").to_string().contains("is not UTF-8"));
    }
}
