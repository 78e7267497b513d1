//! Malformed input.
//!
//! Owns: that no bytes make the parser panic, hang or print garbage. Never: says which mistakes are found.

use std::sync::mpsc;
use std::time::Duration;

use lodge_image::agentfile::parse;

use crate::{Args, args, stock};

const CASES: u32 = 40_000;
const ANSWER_MAX: Duration = Duration::from_secs(120);
const SEED: u64 = 0x0dd_0a6e_27f1_1e5e;

/// A small generator whose every run is the same.
struct AgentfileRandom(u64);

impl AgentfileRandom {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    fn pick<'a, T: ?Sized>(&mut self, items: &[&'a T]) -> &'a T {
        items[self.below(items.len())]
    }
}

const PIECES: [&[u8]; 40] = [
    b"FROM scratch\n",
    b"FROM ",
    b"CONTEXT ",
    b"CONFIG ",
    b"ENV ",
    b"BIN ",
    b"EXEC ",
    b"ADD ",
    b"ARG ",
    b"LIMIT ",
    b"NETWORK ",
    b"MCP ",
    b"SERVICE ",
    b"SCHEDULE ",
    b"ON ",
    b"CAPABILITY ",
    b"LABEL ",
    b"MODEL ",
    b"<<",
    b"<<EOF",
    b"\nEOF\n",
    b"\n",
    b"\r\n",
    b" ",
    b"\t",
    b"\"",
    b"\\",
    b"\\u",
    b"\\ud83e\\u",
    b"=",
    b"!",
    b"[",
    b"]",
    b",",
    b"${",
    b"}",
    b"${a}",
    b"file://",
    b"\xc3\xa9",
    b"# syntax=",
];

fn soup(random: &mut AgentfileRandom) -> Vec<u8> {
    let mut bytes =
        if random.below(2) == 0 { b"FROM scratch\nARG a=\"${\\\"x\"\n".to_vec() } else { Vec::new() };
    for _ in 0..random.below(30) {
        match random.below(8) {
            0 => bytes.push(random.next() as u8),
            1 => bytes.extend(random.next().to_string().bytes()),
            _ => bytes.extend(random.pick(&PIECES)),
        }
    }
    bytes
}

fn noise(random: &mut AgentfileRandom) -> Vec<u8> {
    (0..random.below(80)).map(|_| random.next() as u8).collect()
}

fn mutation(random: &mut AgentfileRandom) -> Vec<u8> {
    let mut bytes = match random.below(2) {
        0 => random.pick(&stock::ALL).as_bytes().to_vec(),
        _ => stock::STOCK[random.below(stock::STOCK.len())].1.as_bytes().to_vec(),
    };
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len());
        let to = (at + random.below(12)).min(bytes.len());
        match random.below(4) {
            0 => bytes[at] = random.next() as u8,
            1 => drop(bytes.drain(at..to)),
            2 => drop(bytes.splice(at..at, random.pick(&PIECES).iter().copied())),
            _ => bytes.truncate(at.max(1)),
        }
        if bytes.is_empty() {
            break;
        }
    }
    bytes
}

#[test]
fn no_input_panics_and_every_refusal_can_be_printed() {
    let given = args(&[("a", "x \" y"), ("registry", "<<E"), ("tag", "")]);
    let mut random = AgentfileRandom(SEED);
    let (mut accepted, mut refused) = (0, 0);
    for case in 0..CASES {
        let bytes = match case % 4 {
            0 => soup(&mut random),
            1 => noise(&mut random),
            _ => mutation(&mut random),
        };
        match parse("Agentfile", &bytes, &given) {
            Ok(_) => accepted += 1,
            Err(errors) => {
                refused += 1;
                let report = errors.to_string();
                let plain = report.chars().all(|c| c == '\n' || !c.is_control());
                assert!(plain, "case {case}: {report:?}");
                assert!(errors.iter().all(|error| error.line > 0 && error.column > 0), "case {case}");
            }
        }
    }
    assert!(accepted > 1_000 && refused > 1_000, "{accepted} accepted, {refused} refused");
}

#[test]
fn every_prefix_of_a_good_file_is_answered() {
    for source in stock::ALL.into_iter().chain(stock::STOCK.map(|(_, source)| source)) {
        for end in 0..=source.len() {
            // Any answer is fine here.
            let _ = parse("Agentfile", &source.as_bytes()[..end], &Args::new());
        }
    }
}

/// Files of the allowed size, each as bad as its kind can be.
fn worst() -> Vec<String> {
    let fill = |piece: &str| piece.repeat((1 << 20) / piece.len() - 64);
    let many = |count: usize, one: &dyn Fn(usize) -> String| -> String { (0..count).map(one).collect() };
    vec![
        fill("${"),
        fill("${a}"),
        fill("<<E\n"),
        fill("A \"<<E\n"),
        fill("CONTEXT A <<E\n"),
        fill("\n"),
        fill("#\n"),
        fill("\""),
        fill("\\"),
        fill("é"),
        fill("CAPABILITY a b c d e f g h\n"),
        fill("CAPABILITY aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n"),
        format!("FROM scratch\nARG a={}\n{}", "x".repeat(60_000), fill("${a}\n")),
        format!("FROM scratch\nNETWORK {}\n", "a,".repeat(30_000)),
        format!("FROM scratch\nNETWORK {}\n", ",".repeat(60_000)),
        format!(
            "FROM scratch\n{}",
            many(1_000, &|line| format!("CAPABILITY {}\n", many(120, &|n| format!("c{line}x{n} "))))
        ),
        format!("FROM scratch\nCAPABILITY {}\n", many(9_000, &|n| format!("c{n} "))),
        format!("FROM scratch\n{}", many(4_000, &|n| format!("LABEL l{n}=x\n"))),
        format!("FROM scratch\n{}", many(4_000, &|n| format!("ENV K{n}=${{a}}\nARG a=x\n"))),
        format!("FROM scratch\n{}", many(500, &|n| format!("CONTEXT C{n} <<E\n{}\nE\n", "x".repeat(2_000)))),
        format!("FROM scratch\nSERVICE a b {}\n", many(6_000, &|n| format!("E{n}=1 "))),
        format!("FROM scratch\nARG x=1\nNAME {}\n", "${x}".repeat(16_000)),
        format!("FROM scratch\nARG x=1\nNETWORK {}\n", "${x}! ".repeat(10_000)),
        format!("FROM scratch\nEXEC [{}]\n", "\"a\",".repeat(12_000)),
        format!("FROM {}\n", "../".repeat(20_000)),
        format!("FROM scratch\nNAME {}\n", "n".repeat(60_000)),
    ]
}

#[test]
fn the_worst_files_of_the_allowed_size_are_answered() {
    let (answered, wait) = mpsc::channel();
    let worst = worst();
    let count = worst.len();
    let at_work = std::thread::spawn(move || {
        for source in worst {
            for end in [source.len(), source.len() - 1] {
                let errors = parse("Agentfile", &source.as_bytes()[..end], &Args::new()).err();
                answered.send(errors.map_or(0, |errors| errors.to_string().len())).expect("the test waits");
            }
        }
    });
    for nth in 0..count * 2 {
        // Each takes milliseconds; work that grows with the square of the size would take hours.
        let report =
            wait.recv_timeout(ANSWER_MAX).unwrap_or_else(|_| panic!("no answer to file {}", nth / 2));
        assert!(report < 1 << 20, "a report nobody could read: {report} bytes for file {}", nth / 2);
    }
    at_work.join().expect("no panic");
}

#[test]
fn names_and_references_of_any_size_are_refused_without_being_repeated() {
    let huge = "x".repeat(10 << 20);
    for source in [format!("FROM {huge}"), format!("FROM scratch\nNAME {huge}"), huge.clone()] {
        let errors = parse("Agentfile", source.as_bytes(), &Args::new()).expect_err("refused");
        assert_eq!(errors.first().code(), "agentfile.file_too_large");
        assert!(errors.to_string().len() < 1_000);
    }
    let error = lodge_image::Reference::read(&huge).expect_err("refused");
    assert!(error.to_string().len() < 1_000);
    let errors = parse("Agentfile", b"FROM scratch\nARG x\nNAME ${x}\n", &args(&[("x", &huge)]));
    assert!(errors.expect_err("refused").to_string().len() < 1_000);
}
