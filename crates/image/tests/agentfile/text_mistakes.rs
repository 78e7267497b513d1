//! Mistakes in encoding, quotes, heredocs and sizes.
//!
//! Owns: a case for every code of `TextMistake` and `BoundMistake`. Never: tests values.

use lodge_image::agentfile::{
    BoundMistake, ERRORS_MAX, FILE_MAX, HEREDOC_MAX, HEREDOCS_MAX, INSTRUCTIONS_MAX, LINE_MAX, LINES_MAX,
    TextMistake, WORDS_MAX, parse,
};

use crate::{Args, bad, check_covered, check_lines, check_mistakes, codes};

const LINES: &[(&str, &str)] = &[
    ("# syntax=lodge/agentfile:1", "1 agentfile.syntax_line_misplaced"),
    ("NAME\u{a0}otter", "5 agentfile.bad_character"),
    ("NAME ot\u{200b}ter", "8 agentfile.bad_character"),
    ("NAME a\rb", "7 agentfile.bad_character"),
    ("LABEL a=\"\u{1b}[31m\"", "10 agentfile.bad_character"),
    ("LABEL a=\"b", "9 agentfile.string_not_closed"),
    ("LABEL a=\"b\\\"", "9 agentfile.string_not_closed"),
    ("LABEL a=\"é\\q\"", "11 agentfile.bad_escape"),
    ("LABEL a=\"\\x00\"", "10 agentfile.bad_escape"),
    ("LABEL a=\"\\000\"", "10 agentfile.bad_escape"),
    ("LABEL a=\"\\u0000\"", "10 agentfile.bad_escape"),
    ("LABEL a=\"\\ud83e\"", "10 agentfile.bad_escape"),
    ("LABEL a=\"\\xé1\"", "10 agentfile.bad_escape"),
    ("LABEL a=\"\\u12", "10 agentfile.bad_escape"),
    ("CONTEXT A << EOF", "11 agentfile.heredoc_marker_missing"),
    ("CONTEXT A <<\"EOF\"", "11 agentfile.heredoc_marker_missing"),
    ("CONTEXT A <<EOF\ntext", "11 agentfile.heredoc_not_closed"),
    ("CONTEXT A <<-EOF\ntext\nEOF", "11 agentfile.heredoc_not_closed"),
    ("CONTEXT A <<EOF \"late\"\ntext\nEOF", "11 agentfile.heredoc_not_last"),
    ("LABEL a=b \\\n  c=d \\\n  e=f", "11 agentfile.line_continued"),
    ("BIN rg \\", "8 agentfile.line_continued"),
    ("\\", "1 agentfile.line_continued"),
];

const FILES: &[(&str, &str)] = &[
    ("\u{feff}FROM scratch", "1:1 agentfile.byte_order_mark"),
    ("# syntax=lodge/agentfile:2\nFROM scratch", "1:1 agentfile.unknown_syntax"),
    (" # syntax=docker/dockerfile:1\nFROM scratch", "1:2 agentfile.unknown_syntax"),
];

#[test]
fn every_text_mistake_is_found_where_it_stands() {
    check_lines(LINES);
    for (source, expected) in FILES {
        check_mistakes(source, &[expected]);
    }
    let mut covered = codes(&[LINES, FILES]);
    covered.push("agentfile.not_utf8");
    check_covered(TextMistake::CODES, &covered);
}

#[test]
fn a_continued_line_and_what_it_continues_are_one_mistake_that_says_what_to_write() {
    let source = b"FROM scratch\nRUN apt-get update && \\\n    apt-get install -y git\nENV A=b \\\n    C=d\nWORKDIR /src\n";
    let errors = parse("Agentfile", source, &Args::new()).expect_err("another language");
    let told: Vec<(u32, String)> = errors.iter().map(|error| (error.line, error.hint())).collect();
    assert_eq!(told.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [2, 4, 6], "{told:?}");
    let said = ["nothing is run during a build", "join the lines and remove the `\\`", "start in /workspace"];
    for ((_, hint), said) in told.iter().zip(said) {
        assert!(hint.contains(said), "{hint}");
    }
}

#[test]
fn bytes_that_are_not_utf8_are_refused_where_they_stand() {
    for (source, place) in [
        (&b"FROM scratch\nNAME \xc3\xa9\xff"[..], (2, 7)),
        (b"\xff\xfeF\0", (1, 1)),
        (b"FROM\n\n\xc3", (3, 1)),
    ] {
        let errors = parse("Agentfile", source, &Args::new()).expect_err("not UTF-8");
        assert_eq!((errors.first().line, errors.first().column), place);
        assert_eq!((errors.iter().count(), errors.first().code()), (1, "agentfile.not_utf8"));
    }
}

#[test]
fn every_bound_is_refused_one_step_beyond_and_not_before() {
    let from = "FROM scratch\n";
    let filled = |max: usize| format!("{from}#{}", "x".repeat(max - from.len() - 1));
    let lines = |count: usize| format!("{from}{}", "\n".repeat(count - 1));
    let line = |max: usize| format!("{from}LABEL a={}", "x".repeat(max - "LABEL a=".len()));
    let instructions = |count: usize| format!("{from}{}", "NAME a\n".repeat(count - 1));
    let heredocs = |count: usize| format!("{from}{}", "CONTEXT A <<E\nE\n".repeat(count));
    let heredoc = |size: usize| format!("{from}CONTEXT A <<E\n{}\nE\n", "x".repeat(size));
    let expanded =
        |count: usize| format!("{from}ARG a={}\nLABEL b={}", "x".repeat(1024), "${a}".repeat(count));
    let doubled = |count: usize| {
        format!("{from}ARG a={}\n{}", "x".repeat(LINE_MAX - 100), "LABEL b=${a}\n".repeat(count))
    };
    let words = |count: usize| format!("{from}MCP a host:b{}", " c".repeat(count - 3));
    let cases: [(&str, String, String); 9] = [
        ("agentfile.too_many_words", words(WORDS_MAX), words(WORDS_MAX + 1)),
        ("agentfile.file_too_large", filled(FILE_MAX), filled(FILE_MAX + 1)),
        ("agentfile.too_many_lines", lines(LINES_MAX), lines(LINES_MAX + 1)),
        ("agentfile.line_too_long", line(LINE_MAX), line(LINE_MAX + 1)),
        (
            "agentfile.too_many_instructions",
            instructions(INSTRUCTIONS_MAX),
            instructions(INSTRUCTIONS_MAX + 1),
        ),
        ("agentfile.too_many_heredocs", heredocs(HEREDOCS_MAX), heredocs(HEREDOCS_MAX + 1)),
        ("agentfile.heredoc_too_large", heredoc(HEREDOC_MAX), heredoc(HEREDOC_MAX + 1)),
        ("agentfile.expanded_line_too_long", expanded(63), expanded(64)),
        ("agentfile.expansion_too_large", doubled(16), doubled(17)),
    ];
    for (code, within, beyond) in &cases {
        crate::good(within);
        let errors = bad(beyond);
        assert_eq!((errors.iter().count(), errors.first().code()), (1, *code));
    }
    let mut covered: Vec<&str> = cases.iter().map(|(code, ..)| *code).collect();
    covered.push("agentfile.too_many_errors");
    check_covered(BoundMistake::CODES, &covered);
}

#[test]
fn a_hopeless_file_is_given_up_after_enough_mistakes() {
    let errors = bad(&"BAD\n".repeat(5_000));
    assert_eq!(errors.iter().count(), ERRORS_MAX + 1);
    assert_eq!(errors.iter().last().map(|error| error.code()), Some("agentfile.too_many_errors"));
}

#[test]
fn arguments_that_double_each_other_stay_small() {
    let mut source = "FROM scratch\nARG a0=xxxxxxxxxxxxxxxx\n".to_owned();
    for n in 1..200 {
        source.push_str(&format!("ARG a{n}=${{a{}}}${{a{}}}\n", n - 1, n - 1));
    }
    let errors = bad(&source);
    let bounds = ["agentfile.expanded_line_too_long", "agentfile.expansion_too_large"];
    assert!(errors.iter().all(|error| bounds.contains(&error.code())), "{errors}");
    assert!(errors.first().line <= 14, "{errors}");
}

#[test]
fn text_of_a_heredoc_on_a_broken_line_is_not_read_as_instructions() {
    check_mistakes(
        "FROM scratch\nCONTEXT A \"desc <<EOF\nnot an instruction\nEOF\nNAME a b\n",
        &["2:11 agentfile.string_not_closed", "5:8 agentfile.unexpected_word"],
    );
    check_mistakes(
        "FROM scratch\nBLAH <<EOF\nnot an instruction\nEOF\n",
        &["2:1 agentfile.unknown_instruction"],
    );
}

#[test]
fn columns_count_characters_of_the_source_even_after_replacement() {
    check_mistakes(
        "FROM scratch\nARG long=aaaaaaaaaa\nLABEL é=\"${long}\" zzz\n",
        &["3:7 agentfile.bad_label_key", "3:19 agentfile.unexpected_word"],
    );
    check_mistakes("FROM scratch\nARG long=\"a b\"\nNAME ${long}\n", &["3:6 agentfile.unexpected_word"]);
}
