//! Images whose config contradicts the Agentfile that people read.

use std::collections::BTreeMap;

use lodge_image::agentfile::{LoadedAgentfile, load_inline};
use lodge_image::oci::{BadImage, pack_agent, read_agent};
use serde_json::{Value, json};

use crate::{PackedImages, bytes_of, inline, opened, placeless, read};

const SOURCE: &str = "FROM scratch\nNAME otter\nMODEL p/m\nNETWORK none\nLIMIT memory 1g\nARG WHO=me\nENV A=${WHO}\n\
    CONTEXT SOUL <<E\nbe kind\nE\nCONFIG a=1\nBIN rg stock/rg\nBIN ls host:ls\nLABEL l=1\nCAPABILITY note_save\n";

fn with(parents: &[(&str, LoadedAgentfile)], source: &str, args: &[(&str, &str)]) -> LoadedAgentfile {
    let shelf =
        PackedImages(parents.iter().map(|(name, loaded)| ((*name).to_owned(), loaded.clone())).collect());
    let args: BTreeMap<String, String> =
        args.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    load_inline(source.as_bytes(), &args, &shelf).unwrap_or_else(|error| panic!("{error}"))
}

/// The image of an agent with another config.
fn changed(loaded: &LoadedAgentfile, change: &dyn Fn(&mut Value)) -> Result<LoadedAgentfile, BadImage> {
    let packed = pack_agent(loaded).expect("good");
    let (manifest, config) = opened(&packed);
    let mut config: Value = serde_json::from_slice(&config).expect("JSON");
    change(&mut config);
    let config = serde_json::to_vec(&config).expect("JSON");
    read_agent(&manifest, &config, &mut |part| bytes_of(&packed, part))
}

#[track_caller]
fn mismatch(loaded: &LoadedAgentfile, change: &dyn Fn(&mut Value), word: &str) {
    let bad = changed(loaded, change).expect_err("read");
    assert_eq!(bad.code(), "image.mismatch", "{bad}");
    assert!(bad.to_string().contains(word), "{bad}");
}

#[test]
fn what_an_agentfile_was_built_into_is_read_also_with_build_arguments_and_parents() {
    let base = inline(SOURCE);
    let child =
        "FROM base\nMODEL q/n\nNETWORK a.example\nCONTEXT MORE <<E\nx\nE\nBIN rg other/rg:v2\nENV B=2\n";
    for loaded in [
        base.clone(),
        with(&[], SOURCE, &[("WHO", "you")]),
        with(&[("base", base.clone())], child, &[]),
        with(&[("base", base.clone())], "FROM base\nRUNTIME host:/bin/loop\nCONFIG b=2\n", &[]),
        with(&[("base", base)], "FROM base\nCONTEXT SOUL <<E\nother\nE\n", &[]),
    ] {
        let packed = pack_agent(&loaded).expect("good");
        assert_eq!(read(&packed), Ok(placeless(loaded)));
    }
}

#[test]
fn a_config_that_gives_more_than_its_agentfile_is_refused() {
    let loaded = inline(SOURCE);
    mismatch(&loaded, &|config| config["network"] = json!(["host"]), "NETWORK");
    mismatch(
        &loaded,
        &|config| drop(config.as_object_mut().expect("an object").remove("network")),
        "NETWORK",
    );
    mismatch(&loaded, &|config| config["limits"] = json!([]), "LIMIT");
    mismatch(&loaded, &|config| config["limits"][0]["value"] = json!("2g"), "LIMIT");
    mismatch(&loaded, &|config| config["model"] = json!("p/other"), "MODEL");
    mismatch(&loaded, &|config| config["bins"][1]["source"] = json!("host:sh"), "BIN");
    mismatch(&loaded, &|config| config["bins"][1]["safe"] = json!(true), "BIN");
    let other = format!("other/rg:latest@sha256:{}", "0".repeat(64));
    mismatch(&loaded, &|config| config["bins"][0]["source"] = json!(other), "BIN");
    let more = json!({"name": "sh", "source": "host:sh"});
    mismatch(&loaded, &|config| config["bins"].as_array_mut().expect("bins").push(more.clone()), "BIN");
    mismatch(&loaded, &|config| config["envs"][0]["value"] = json!("root"), "ENV");
    mismatch(&loaded, &|config| config["configs"][0]["value"] = json!("2"), "CONFIG");
    mismatch(&loaded, &|config| config["capabilities"] = json!(["note_save", "job_submit"]), "CAPABILITY");
    mismatch(&loaded, &|config| config["exec"] = json!(["x"]), "EXEC");
    mismatch(&loaded, &|config| config["runtime"] = json!("host:/bin/sh"), "RUNTIME");
    // What a parent would explain needs one.
    mismatch(&loaded, &|config| config["parents"] = json!(1), "FROM");
    mismatch(&loaded, &|config| config["from"] = json!("base"), "FROM");
    // Another version of the same tool is what a pin is for, and an argument is what a build was given.
    let pinned = format!("stock/rg:latest@sha256:{}", "0".repeat(64));
    assert!(changed(&loaded, &|config| config["bins"][0]["source"] = json!(pinned)).is_ok());
    let given = |config: &mut Value| {
        config["args"][0]["value"] = json!("you");
        config["envs"][0]["value"] = json!("you");
    };
    assert!(changed(&loaded, &given).is_ok());
}

#[test]
fn with_a_parent_everything_that_the_agentfile_says_is_in_force() {
    let base = inline(SOURCE);
    let child = "FROM base\nMODEL q/n\nNETWORK none\nBIN ls host:dir\nCONTEXT SOUL <<E\nmine\nE\n";
    let loaded = with(&[("base", base)], child, &[]);
    mismatch(&loaded, &|config| config["network"] = json!(["host"]), "NETWORK");
    mismatch(&loaded, &|config| config["model"] = json!("p/m"), "MODEL");
    mismatch(&loaded, &|config| config["bins"][1]["source"] = json!("host:ls"), "BIN");
    mismatch(&loaded, &|config| config["from"] = json!("other"), "FROM");
    mismatch(&loaded, &|config| drop(config.as_object_mut().expect("an object").remove("parents")), "FROM");
}

#[test]
fn texts_that_stand_in_the_agentfile_are_the_ones_in_the_image() {
    let (good, evil) = (inline(SOURCE), inline(&SOURCE.replace("be kind", "be evil")));
    let (packed, other) = (pack_agent(&good).expect("good"), pack_agent(&evil).expect("good"));
    let (mut manifest, config) = opened(&packed);
    let (changed, _) = opened(&other);
    // The Agentfile of one with the text of the other.
    manifest.layers[1] = changed.layers[1].clone();
    let read = read_agent(&manifest, &config, &mut |part| {
        bytes_of(&packed, part).or_else(|_| bytes_of(&other, part))
    });
    let bad = read.expect_err("read");
    assert!(bad.code() == "image.mismatch" && bad.to_string().contains("`SOUL`"), "{bad}");
    let (mut manifest, config) = opened(&packed);
    manifest.layers[0] = changed.layers[0].clone();
    let read = read_agent(&manifest, &config, &mut |part| {
        bytes_of(&packed, part).or_else(|_| bytes_of(&other, part))
    });
    assert_eq!(read.expect_err("read").code(), "image.mismatch");
}
