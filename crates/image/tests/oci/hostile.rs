//! Mutated bytes: no panic, no hang, and nothing is accepted that would not be written again in the same form.

use lodge_image::oci::{MANIFEST_MAX, ManifestDocument, pack_agent, read_agent, read_agent_head};
use lodge_image::{Digest, Reference, RemoteImage, TaggedName};

use crate::{OciRandom, bytes_of, generate, opened};

const SEED: u64 = 0x00ba_d0fb_17e5;
const DOCUMENTS: u32 = 20_000;
const CONFIGS: u32 = 3_000;
const REFERENCES: u32 = 60_000;

const PIECES: [&[u8]; 34] = [
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\"",
    b"\\",
    b"\\u0000",
    b"\\ud800",
    b"null",
    b"true",
    b"-1",
    b"1e999",
    b"18446744073709551616",
    b"0.0000000000000000000000000000000001",
    b"\"schemaVersion\":2,",
    b"\"schemaVersion\":1,",
    b"\"layers\":[],",
    b"\"manifests\":[],",
    b"\"config\":{},",
    b"\"size\":-9223372036854775808",
    b"\"digest\":\"sha256:\"",
    b"\"annotations\":{\"a\":\"b\"},",
    b"\"subject\":null,",
    b"\"platform\":{\"os\":\"\",\"architecture\":\"\"},",
    b"\"name\":\"..\"",
    b"\"envs\":[{\"key\":\"PATH\",\"value\":\"\"}],",
    b"\"network\":[\"host\"],",
    b"\"contexts\":[],",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\0",
    b"\xf0\x9f\xa6\xa6",
];

fn mutate(random: &mut OciRandom, good: &[u8]) -> Vec<u8> {
    let mut bytes = good.to_vec();
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len());
        let to = (at + random.below(24)).min(bytes.len());
        match random.below(6) {
            0 if !bytes.is_empty() => bytes[at] = random.next() as u8,
            1 => drop(bytes.drain(at..to)),
            2 | 3 => drop(bytes.splice(at..to, random.pick(&PIECES).iter().copied())),
            4 => {
                let copied = bytes[at..to].to_vec();
                let into = random.below(bytes.len());
                drop(bytes.splice(into..into, copied));
            }
            _ => bytes.truncate(at),
        }
    }
    bytes
}

/// Swaps two digits or letters at the same position of two words, so that the JSON stays valid.
fn nudge(random: &mut OciRandom, good: &[u8]) -> Vec<u8> {
    let mut bytes = good.to_vec();
    for _ in 0..=random.below(2) {
        let at = random.below(bytes.len());
        if bytes.get(at).is_some_and(u8::is_ascii_alphanumeric) {
            bytes[at] = b"0129azAZ./-_"[random.below(12)];
        }
    }
    bytes
}

fn changed(random: &mut OciRandom, good: &[u8]) -> Vec<u8> {
    if random.below(2) == 0 { mutate(random, good) } else { nudge(random, good) }
}

fn printable(why: &str) -> bool {
    why.len() < 2_000 && !why.contains(char::is_control)
}

#[test]
fn no_manifest_panics_and_what_is_read_is_written_and_read_again() {
    let mut random = OciRandom(SEED);
    let (mut accepted, mut refused) = (0, 0);
    let index = format!(
        r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","artifactType":"application/x","manifests":[{{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"{}","size":7,"platform":{{"os":"linux","architecture":"amd64"}}}}],"annotations":{{"a":"b"}}}}"#,
        Digest::of(b"x")
    );
    let mut good = Vec::new();
    for case in 0..DOCUMENTS {
        if case % 50 == 0 {
            let packed = pack_agent(&generate::loaded(&mut random)).expect("good");
            good = packed.blobs.last().expect("a manifest").bytes.clone();
        }
        let bytes = changed(&mut random, if case % 3 == 0 { index.as_bytes() } else { &good });
        match ManifestDocument::read(&bytes) {
            Ok(document) => {
                accepted += 1;
                let written = document.write().expect("small");
                assert_eq!(ManifestDocument::read(&written).as_ref(), Ok(&document), "case {case}");
            }
            Err(bad) => {
                refused += 1;
                assert!(printable(&bad.to_string()), "case {case}: {bad:?}");
            }
        }
    }
    assert!(accepted > 1_000 && refused > 1_000, "{accepted} accepted, {refused} refused");
}

/// Documents of the allowed size, each as bad as its kind can be.
#[test]
fn the_worst_documents_of_the_allowed_size_are_answered() {
    let max = usize::try_from(MANIFEST_MAX).expect("small");
    let keys: String = (0..280_000).map(|nth| format!("\"k{nth}\":\"\",")).collect();
    for (open, piece) in [
        ("{\"a\":", "["),
        ("{\"a\":", "{\"a\":"),
        ("{\"a\":\"", "\\u0000"),
        ("{\"a\":[", "{},"),
        ("{\"layers\":[", "{\"annotations\":{\"a\":\"b\"}},"),
        ("{\"envs\":[", "{\"key\":\"A\",\"value\":\"\"},"),
        ("{\"from\":\"scratch\",\"capabilities\":[", "\"note_save\","),
        ("{\"a\":", "9"),
        ("{", &keys),
        ("{\"annotations\":{", &keys),
    ] {
        let mut bytes = open.as_bytes().to_vec();
        while bytes.len() + piece.len() <= max {
            bytes.extend(piece.as_bytes());
        }
        let why = ManifestDocument::read(&bytes).expect_err("refused").to_string();
        assert!(printable(&why), "{why}");
        let packed = pack_agent(&generate::loaded(&mut OciRandom(SEED))).expect("good");
        assert!(read_agent_head(&opened(&packed).0, &bytes).is_err());
    }
}

#[test]
fn no_config_panics_and_what_is_read_can_be_packed() {
    let mut random = OciRandom(SEED);
    let (mut accepted, mut refused) = (0, 0);
    let mut packed = pack_agent(&generate::loaded(&mut random)).expect("good");
    for case in 0..CONFIGS {
        if case % 20 == 0 {
            packed = pack_agent(&generate::loaded(&mut random)).expect("good");
        }
        let (manifest, config) = opened(&packed);
        let config = changed(&mut random, &config);
        let head = read_agent_head(&manifest, &config);
        match read_agent(&manifest, &config, &mut |part| bytes_of(&packed, part)) {
            Ok(loaded) => {
                accepted += 1;
                assert!(head.is_ok(), "case {case}");
                let again = pack_agent(&loaded).unwrap_or_else(|bad| panic!("case {case}: {bad}"));
                assert_eq!(crate::read(&again).as_ref(), Ok(&loaded), "case {case}");
            }
            Err(bad) => {
                refused += 1;
                assert!(printable(&bad.to_string()), "case {case}: {bad:?}");
            }
        }
    }
    assert!(accepted > 200 && refused > 500, "{accepted} accepted, {refused} refused");
}

#[test]
fn no_reference_panics_and_what_is_one_is_written_in_one_way() {
    const WORDS: [&str; 22] = [
        "a",
        "rg",
        "localhost",
        "registry.example",
        ":5000",
        ":",
        "/",
        "@",
        ".",
        "..",
        "-",
        "_",
        "latest",
        "[::1]",
        "sha256:",
        "sha512:",
        "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        "é",
        " ",
        "%2f",
        "A",
        "\0",
    ];
    let mut random = OciRandom(SEED);
    let (mut names, mut remotes, mut pinned) = (0, 0, 0);
    for _ in 0..REFERENCES {
        let mut text: String = (0..=random.below(8)).map(|_| random.pick(&WORDS)).collect();
        if random.below(4) == 0 {
            text = format!("{text}@{}", Digest::of(text.as_bytes()));
        }
        match (TaggedName::read(&text), Reference::read(&text)) {
            (Ok(name), read) => {
                names += 1;
                assert_eq!(TaggedName::read(name.as_str()).as_ref(), Ok(&name), "{text:?}");
                assert_eq!(read, Ok(Reference::Name(name)), "{text:?}");
            }
            (Err(_), Ok(Reference::Digest(digest))) => assert!(digest.starts_with("sha256:"), "{text:?}"),
            (Err(_), Ok(Reference::Name(name))) => panic!("{text:?} is {name}"),
            (Err(bad), Err(_)) => assert!(printable(&bad.to_string()), "{text:?}"),
        }
        if let Ok(Some((name, digest))) = Reference::pinned(&text) {
            pinned += 1;
            assert_eq!(Reference::pinned(&name.pin(&digest)), Ok(Some((name, digest))), "{text:?}");
        }
        if let Ok(Some(remote)) = RemoteImage::read(&text) {
            remotes += 1;
            assert_eq!(RemoteImage::read(&remote.to_string()), Ok(Some(remote.clone())), "{text:?}");
            let plain = |text: &str| text.chars().all(|c| c.is_ascii_graphic() && !"@%?#\\".contains(c));
            assert!(plain(&remote.host) && plain(&remote.repository), "{text:?}");
            assert!(!remote.repository.split('/').any(|part| part.is_empty() || part == ".."), "{text:?}");
        }
    }
    assert!(names > 500 && remotes > 30 && pinned > 100, "{names} names, {remotes} remotes, {pinned} pinned");
}
