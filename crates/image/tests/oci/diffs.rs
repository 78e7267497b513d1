//! What changed between two agents.

use lodge_image::agentfile::{LimitKey, LoadedAgentfile};
use lodge_image::diff::{DiffSection, diff};
use lodge_image::oci::pack_agent;

use crate::{OciRandom, generate, inline, placeless, read};

fn default_text(key: LimitKey) -> String {
    format!("without {key}")
}

fn lines(before: &LoadedAgentfile, after: &LoadedAgentfile) -> Vec<String> {
    let word = |value: Option<String>| value.map_or("-".to_owned(), |value| value.replace('\n', "⏎"));
    diff(before, after, default_text)
        .into_iter()
        .filter(|change| change.key != "Agentfile")
        .map(|change| {
            let section = format!("{:?}", change.section).to_lowercase();
            format!("{section} {}: {} → {}", change.key, word(change.before), word(change.after))
        })
        .collect()
}

#[test]
fn everything_that_changed_is_reported_and_what_an_agent_may_do_comes_first() {
    let digest = |letter: &str| format!("sha256:{}", letter.repeat(64));
    let before = inline(&format!(
        "FROM scratch\nLABEL a=1\nCONTEXT SOUL <<E\nbe good\nE\nCONTEXT TAIL <<E\nwag\nE\nCONFIG steps=1\nMODEL a/b\n\
         ENV TOKEN=x\nBIN rg stock/rg:latest@{}\nLIMIT memory 512m\nNETWORK none\nNAME otter\nCONFIG mode!\n\
         SCHEDULE \"@daily\" \"a\"\n",
        digest("a")
    ));
    let after = inline(&format!(
        "FROM scratch\nLABEL a=2\nCONTEXT TAIL <<E\nwag\nE\nCONTEXT SOUL <<E\nbe bad\nE\nCONFIG steps=\"1\"\nMODEL a/c\n\
         ENV TOKEN=y\nBIN rg stock/rg:latest@{} safe \"finds\"\nBIN ls host:ls\nLIMIT memory 2g\nLIMIT pids 7\n\
         NETWORK a.example *.b.example\nNAME otter\nCAPABILITY note_save\nRUNTIME host:loop\nCONFIG mode!\n\
         SCHEDULE \"@daily\" \"a\"\nSCHEDULE \"@daily\" \"b\"\nSERVICE db pg DB_PASSWORD=z\nARG x=1\n",
        digest("b")
    ));
    // RUNTIME drops the settings above it.
    let expected = [
        "network network: none → a.example *.b.example".to_owned(),
        "limits memory: 512m → 2g".to_owned(),
        "limits pids: without pids → 7".to_owned(),
        "capabilities note_save: - → asked for".to_owned(),
        "runtime runtime: - → host:loop".to_owned(),
        "bins ls: - → host:ls".to_owned(),
        format!("bins rg: stock/rg:latest@{} → stock/rg:latest@{} safe", digest("a"), digest("b")),
        "bins rg description: - → finds".to_owned(),
        "services schedule @daily (2): - → b".to_owned(),
        "services service db: - → pg".to_owned(),
        "env TOKEN: x → y".to_owned(),
        "env db:DB_PASSWORD: - → z".to_owned(),
        "model model: a/b → a/c".to_owned(),
        "config steps: 1 → -".to_owned(),
        "contexts SOUL: be good → be bad".to_owned(),
        "contexts order of the contexts: SOUL, TAIL → TAIL, SOUL".to_owned(),
        "labels a: 1 → 2".to_owned(),
        "other arg x: - → 1".to_owned(),
    ];
    assert_eq!(lines(&before, &after), expected);
}

#[test]
fn what_is_no_longer_forbidden_is_reported_as_what_then_holds() {
    let open = inline("FROM scratch\n");
    let closed = inline("FROM scratch\nNETWORK none\nLIMIT memory 512m\n");
    let listed = inline("FROM scratch\nNETWORK a.example\n");
    assert_eq!(
        lines(&closed, &open),
        ["network network: none → public", "limits memory: 512m → without memory"]
    );
    assert_eq!(lines(&listed, &open), ["network network: a.example → public"]);
    assert_eq!(lines(&open, &listed), ["network network: public → a.example"]);
    // The same in other words.
    assert_eq!(lines(&open, &inline("FROM scratch\nNETWORK public\n")), [""; 0]);
    let hosts = inline("FROM scratch\nNETWORK host\n");
    assert_eq!(lines(&open, &hosts), ["network network: public → host"]);
}

#[test]
fn the_text_of_a_number_is_not_the_number() {
    let (number, text) = (inline("FROM scratch\nCONFIG a=1\n"), inline("FROM scratch\nCONFIG a=\"1\"\n"));
    assert_eq!(lines(&number, &text), ["config a: 1 → \"1\""]);
}

#[test]
fn nothing_differs_exactly_when_the_images_are_the_same() {
    let mut random = OciRandom(0xd1ff_5eed);
    let (mut same, mut different) = (0, 0);
    let mut last = generate::loaded(&mut random);
    for case in 0..500 {
        let next = if case % 3 == 0 { last.clone() } else { generate::loaded(&mut random) };
        let images = (pack_agent(&last).expect("good").digest, pack_agent(&next).expect("good").digest);
        let changes = diff(&last, &next, default_text);
        assert_eq!(changes.is_empty(), images.0 == images.1, "case {case}: {changes:?}");
        assert!(changes.windows(2).all(|pair| pair[0].section <= pair[1].section));
        assert!(changes.iter().all(|change| change.before != change.after));
        if changes.is_empty() {
            same += 1
        } else {
            different += 1
        }
        last = next;
    }
    assert!(same > 100 && different > 100, "{same} and {different}");
}

#[test]
fn what_was_packed_and_read_does_not_differ() {
    let mut random = OciRandom(0xd1ff_5eed);
    for _ in 0..100 {
        let loaded = generate::loaded(&mut random);
        let read = read(&pack_agent(&loaded).expect("good")).expect("good");
        assert_eq!(diff(&placeless(loaded), &read, default_text), []);
    }
    assert!(DiffSection::Network < DiffSection::Env && DiffSection::Bins < DiffSection::Model);
}
