//! Generated valid Agentfiles.

use std::fmt::Write;

use lodge_image::agentfile::{CAPABILITIES, LoadedAgentfile, PackedFiles, load_packed};

use crate::{OciRandom, PackedImages};

const NAMES: [&str; 12] = [
    "a",
    "B",
    "soul",
    "SOUL",
    "x.y",
    "z-",
    "n_1",
    "0",
    "tool",
    "tool-2",
    "A1",
    "long-long-long-long-long-name",
];
const KEYS: [&str; 6] = ["a", "max-steps", "temperature", "x1", "0", "a-b-c"];
const LITERALS: [&str; 14] = [
    "true",
    "false",
    "0",
    "-1",
    "9223372036854775807",
    "007",
    "0.1",
    "-0.0",
    "1e300",
    "2.5e-300",
    "1.0",
    "x",
    "\"\"",
    "\"1\"",
];
const REFS: [&str; 6] =
    ["rg", "stock/rg:latest", "localhost:5000/a/b:v1", "registry.example/x", "host:ls", "host:/usr/bin/env"];
const LIMITS: [&str; 9] = [
    "LIMIT memory 512m",
    "LIMIT pids 64",
    "LIMIT cpu-time 1h30m1ms",
    "LIMIT disk 3",
    "LIMIT output 18014398509481983k",
    "LIMIT budget-usd 2.500001",
    "LIMIT budget-tokens 5m",
    "LIMIT context-tokens 200001",
    "LIMIT revival-policy ask",
];
const NETWORKS: [&str; 8] = [
    "NETWORK none",
    "NETWORK public",
    "NETWORK lan",
    "NETWORK a.example loopback:5432",
    "NETWORK host",
    "NETWORK example.org",
    "NETWORK *.example.org:443, 10.0.0.0/8 2001:db8::1",
    "NETWORK b.example a.example",
];
const CHARACTERS: [&str; 20] = [
    "a", "Z", " ", "\\n", "\\t", "\\\"", "\\\\", "é", "🦦", "\\u0001", "=", "#", "'", "${x}", "<", ",", "{",
    "}", "\\u00ad", ".",
];

fn quoted(random: &mut OciRandom) -> String {
    let text: String = (0..random.below(12)).map(|_| random.pick(&CHARACTERS)).collect();
    format!("\"{text}\"")
}

fn maybe_quoted(random: &mut OciRandom) -> String {
    if random.below(2) == 0 { String::new() } else { format!(" {}", quoted(random)) }
}

fn body(random: &mut OciRandom) -> String {
    let mut body = "<<END\n".to_owned();
    for _ in 0..random.below(4) {
        let line: String = (0..random.below(9)).map(|_| random.pick(&CHARACTERS)).collect();
        let _ = writeln!(body, "{line}");
    }
    body + "END"
}

/// A line of a kind that can stand there any number of times, and what it needs.
fn line(random: &mut OciRandom, files: &mut PackedFiles) -> String {
    let name = random.pick(&NAMES);
    let key = random.pick(&KEYS);
    match random.below(14) {
        0 => format!("CONTEXT {name}{} {}", maybe_quoted(random), body(random)),
        1 => {
            files.contexts.insert(name.to_owned(), quoted(random));
            format!("CONTEXT {name}{} file://dir/{name}.md", maybe_quoted(random))
        }
        2 => format!("CONFIG {key}={}{}", random.pick(&LITERALS), maybe_quoted(random)),
        3 => format!("CONFIG {key}{}{}", random.pick(&["", "!", "="]), maybe_quoted(random)),
        4 => format!("ENV {}={}{}", name_of_env(random), quoted(random), maybe_quoted(random)),
        5 => {
            let safe = random.pick(&["", " safe"]);
            let usage = if random.below(2) == 0 { String::new() } else { format!(" {}", body(random)) };
            format!("BIN {name} {}{safe}{}{usage}", random.pick(&REFS), maybe_quoted(random))
        }
        6 => {
            let size = random.below(50);
            let bytes = (0..size).map(|_| random.next() as u8).collect();
            files.files.insert(name.to_owned(), bytes);
            format!("ADD some/file {name}{}", maybe_quoted(random))
        }
        7 => format!("LABEL {}={}", random.pick(&["description", "org.x/y", "a"]), quoted(random)),
        8 => format!("ARG {}{}", random.pick(&["x", "_y", "z.z"]), random.pick(&["", "=", "=1", "=\"a b\""])),
        9 => format!("CAPABILITY {} {}", random.pick(&CAPABILITIES), random.pick(&CAPABILITIES)),
        10 => format!("SKILL {}", random.pick(&REFS[..4])),
        11 => format!("SCHEDULE \"{}\" {}", random.pick(&["@daily", "0 9 * * 1-5"]), "\"p\\n\""),
        12 => format!("ON \"a*{}\" {}", random.pick(&["", "b"]), "\"go on\""),
        _ => format!("EXEC [{}]", random.pick(&["", "\"serve\"", "\"a\", \"\\u0001 b\""])),
    }
}

fn name_of_env(random: &mut OciRandom) -> &'static str {
    random.pick(&["A", "_", "DB_PASSWORD", "LONG_NAME_1"])
}

/// A line of a kind that may occur once.
fn once(random: &mut OciRandom, nth: usize) -> String {
    match nth {
        0 => format!("NAME {}", random.pick(&NAMES)),
        1 => format!("MODEL {}", random.pick(&["openai/gpt", "a/b/c:d", "x/é"])),
        2 => format!("RUNTIME {}", random.pick(&REFS)),
        3 => random.pick(&NETWORKS).to_owned(),
        4 => {
            random.pick(&["MCP m https://x.example/a?b", "MCP m host:x --a \"b c\" d", "MCP m rg"]).to_owned()
        }
        5 => random
            .pick(&["SERVICE db postgres:16", "SERVICE db a/b optional A=1 B=\"x y\" healthcheck=\"t -a\""])
            .to_owned(),
        _ => random.pick(&LIMITS).to_owned(),
    }
}

pub(crate) fn source(random: &mut OciRandom, from: &str) -> (String, PackedFiles) {
    let mut files = PackedFiles::default();
    let mut lines = vec![format!("FROM {from}")];
    for nth in 0..7 {
        if random.below(2) == 0 {
            lines.push(once(random, nth));
        }
    }
    for _ in 0..random.below(16) {
        lines.push(line(random, &mut files));
    }
    (lines.join("\n") + "\n", files)
}

/// An agent, with up to two parents.
pub(crate) fn loaded(random: &mut OciRandom) -> LoadedAgentfile {
    let mut shelf = PackedImages::default();
    let mut from = "scratch";
    loop {
        let (source, files) = source(random, from);
        let loaded = match load_packed(source.as_bytes(), files, &shelf) {
            Ok(loaded) => loaded,
            Err(error) => panic!("{error}\nin:\n{source}"),
        };
        if loaded.parents == 2 || random.below(2) == 0 {
            return loaded;
        }
        from = "parent";
        shelf.0.insert(from.to_owned(), loaded);
    }
}
