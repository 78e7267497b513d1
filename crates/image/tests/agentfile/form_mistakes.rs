//! Mistakes in the form of instructions, and how a report reads.
//!
//! Owns: a case for every code of `FormMistake`. Never: tests values.

use lodge_image::agentfile::{FormMistake, Keyword};

use crate::{bad, check_covered, check_lines, check_mistakes, codes};

const LINES: &[(&str, &str)] = &[
    ("COPY a b", "1 agentfile.unknown_instruction"),
    ("\"NAME\"x", "1 agentfile.unknown_instruction"),
    ("<<EOF\nEOF", "1 agentfile.unknown_instruction"),
    ("NAME", "5 agentfile.missing_word"),
    ("BIN rg  ", "7 agentfile.missing_word"),
    ("ENV KEY", "8 agentfile.missing_word"),
    ("ENV KEY value", "8 agentfile.missing_word"),
    ("LABEL key \"value\"", "10 agentfile.missing_word"),
    ("SCHEDULE @daily", "16 agentfile.missing_word"),
    ("NAME otter # the best", "12 agentfile.unexpected_word"),
    ("NAME \"otter\"", "6 agentfile.unexpected_word"),
    ("NAME otter <<EOF\nEOF", "12 agentfile.unexpected_word"),
    ("CAPABILITY job_wait # b", "21 agentfile.unexpected_word"),
    ("NETWORK a.example # b", "19 agentfile.unexpected_word"),
    ("MCP a host:b # c", "14 agentfile.unexpected_word"),
    ("BIN rg host:rg \"d\" safe", "20 agentfile.unexpected_word"),
    ("NETWORK ,", "10 agentfile.missing_word"),
    ("CONTEXT A soul.md", "11 agentfile.unexpected_word"),
    ("CONTEXT A \"d\" \"e\" file://f", "15 agentfile.unexpected_word"),
    ("ON x prompt", "6 agentfile.unexpected_word"),
    ("ENV A=\"x\"y", "10 agentfile.missing_space"),
    ("ENV A=x\"y\"", "8 agentfile.missing_space"),
    ("NAME\"x\"", "5 agentfile.missing_space"),
    ("ENV A = b", "7 agentfile.spaces_around_equals"),
    ("CONFIG a =b", "10 agentfile.spaces_around_equals"),
    ("FROM other", "1 agentfile.repeated"),
    ("CONTEXT A \"only described\"", "27 agentfile.context_without_text"),
    ("CONTEXT A", "10 agentfile.context_without_text"),
    ("CONTEXT A file://a <<EOF\nEOF", "20 agentfile.context_with_two_texts"),
];

const FILES: &[(&str, &str)] = &[
    ("", "1:1 agentfile.from_missing"),
    ("FROM scratch\nSHELL host\nSHELL stock\n", "3:7 agentfile.repeated"),
    ("FROM scratch\nSHELL host\nBIN sh host:sh\n", "3:5 agentfile.second_shell"),
    ("FROM scratch\nBIN sh host:sh\nSHELL host safe\n", "3:7 agentfile.second_shell"),
    ("# nothing\n\n", "1:1 agentfile.from_missing"),
    ("NAME a\n", "1:1 agentfile.from_missing"),
    ("NAME a\nFROM scratch\n", "2:1 agentfile.from_not_first"),
    ("ARG a=b\nFROM ${a}\n", "2:1 agentfile.from_not_first"),
];

#[test]
fn every_form_mistake_is_found_where_it_stands() {
    check_lines(LINES);
    for (source, expected) in FILES {
        check_mistakes(source, &[expected]);
    }
    let mut covered = codes(&[LINES, FILES]);
    // Builders report it: see `load`.
    covered.push("agentfile.unsupported");
    check_covered(FormMistake::CODES, &covered);
}

#[test]
fn what_would_change_an_agents_powers_cannot_be_given_twice() {
    for (line, column) in [
        ("LIMIT pids 2", 7),
        ("NETWORK none", 9),
        ("MCP a host:b", 5),
        ("SERVICE a b", 9),
        ("LIMIT memory 1g", 7),
    ] {
        let errors = bad(&format!("FROM scratch\n{line}\n\n{line}\n"));
        let error = errors.first();
        assert_eq!(
            (errors.iter().count(), error.line, error.column, error.code()),
            (1, 4, column, "agentfile.repeated")
        );
        assert!(error.hint().contains("line 2"), "{error}");
    }
    check_mistakes("FROM scratch\nLIMIT cpu-time 1s\nLIMIT cpu_time 2s\n", &["3:7 agentfile.repeated"]);
}

#[test]
fn a_misspelt_or_broken_from_is_reported_once() {
    check_mistakes("FORM scratch\nNAME a\n", &["1:1 agentfile.unknown_instruction"]);
    check_mistakes("FROM\nNAME a\n", &["1:5 agentfile.missing_word"]);
    check_mistakes("FROM \"scratch\nNAME a\n", &["1:6 agentfile.string_not_closed"]);
}

#[test]
fn a_report_reads_like_a_compilers() {
    let report = bad("FORM scratch\nCONFIG max_steps=3\n  MODEL gpt\n").to_string();
    let words: Vec<&str> = Keyword::ALL.iter().map(|keyword| keyword.word()).collect();
    let expected = format!(
        "Agentfile:1:1: unknown instruction `FORM`\n  expected one of {}\n  hint: did you mean `FROM`?\n\
         Agentfile:2:8: `max_steps` is not a CONFIG key\n  expected lower-case letters, digits and inner `-`, at most 63\n  \
         hint: write `max-steps`\n\
         Agentfile:3:9: `gpt` is not a model\n  expected `provider/model`, such as `openai/gpt-4o`\n  \
         hint: put the provider's name in front, as in `work/model`",
        words.join(", ")
    );
    assert_eq!(report, expected);
}

#[test]
fn a_file_with_several_mistakes_reports_them_all_even_two_on_a_line() {
    check_mistakes(
        concat!(
            "# syntax=other\nFROM Bad//Ref\nFROM scratch\nNAME ../x\nCONTEXT agent file:///etc/passwd\n",
            "ENV PATH=/bin\nENV lower=1\nCAPABILITY Good fine env_list no! \nBIN x host:a/b\nWAT\nLIMIT memory lots\n",
            "CONTEXT A <<EOF\nunclosed",
        ),
        &[
            "1:1 agentfile.unknown_syntax",
            "2:6 agentfile.bad_image_ref",
            "3:1 agentfile.repeated",
            "4:6 agentfile.bad_name",
            "5:9 agentfile.reserved_context",
            "5:15 agentfile.bad_path",
            "6:5 env.key_reserved",
            "7:5 env.key_malformed",
            "8:12 agentfile.bad_capability",
            "8:17 agentfile.unknown_capability",
            "8:31 agentfile.bad_capability",
            "9:7 agentfile.bad_host_program",
            "10:1 agentfile.unknown_instruction",
            "11:14 agentfile.bad_limit",
            "12:11 agentfile.heredoc_not_closed",
        ],
    );
}

#[test]
fn an_unknown_instruction_gets_the_advice_that_fits_it() {
    for (word, advice) in [
        ("FORM", "did you mean `FROM`?"),
        ("CONTXT", "did you mean `CONTEXT`?"),
        ("capabilities", "did you mean `CAPABILITY`?"),
        ("COPY", "use `ADD path [name]` to bake a file into the image"),
        ("entrypoint", "use `EXEC [\"word\"]` for the runtime's first arguments"),
        (
            "zzzzzzzzzzzz",
            "instructions are one per line; longer texts go into a heredoc, comments start with `#`",
        ),
    ] {
        assert_eq!(bad(&format!("FROM scratch\n{word} x")).first().hint(), advice, "{word}");
    }
}

#[test]
fn a_strangers_text_cannot_paint_the_terminal_or_flood_it() {
    let errors = bad(&format!("FROM scratch\nNAME \"\\x1b[31m\\u202e{}\"\n", "x".repeat(5_000)));
    let report = errors.to_string();
    assert!(!report.contains(['\u{1b}', '\u{202e}']), "{report:?}");
    assert!(report.len() < 400, "{report}");
}
