//! Values that break their rule.
//!
//! Owns: a case for every code of `ValueMistake` and `EnvKeyError`. Never: tests form.

use lodge_image::agentfile::{EnvKeyError, ValueMistake, check_env_key, parse};

use crate::{args, bad, check_covered, check_lines, codes};

const LONG: &str = "a234567890123456789012345678901234567890123456789012345678901234";

const LINES: &[(&str, &str)] = &[
    ("NAME -otter", "6 agentfile.bad_name"),
    ("NAME a/b", "6 agentfile.bad_name"),
    ("NAME a234567890123456789012345678901234567890123456789012345678901234", "6 agentfile.bad_name"),
    ("CONTEXT .. file://a", "9 agentfile.bad_name"),
    ("BIN ../sh host:sh", "5 agentfile.bad_name"),
    ("ADD .env", "5 agentfile.bad_name"),
    ("ADD a b:c", "7 agentfile.bad_name"),
    ("CONTEXT AGENT file://a", "9 agentfile.reserved_context"),
    ("CONTEXT Workspace file://a", "9 agentfile.reserved_context"),
    ("CONTEXT mounts file://a", "9 agentfile.reserved_context"),
    ("CONFIG Max=1", "8 agentfile.bad_config_key"),
    ("CONFIG a-", "8 agentfile.bad_config_key"),
    ("CONFIG =1", "8 agentfile.bad_config_key"),
    ("CONFIG a!=1", "8 agentfile.required_with_default"),
    ("CONFIG a!=", "8 agentfile.required_with_default"),
    ("ARG 1a=2", "5 agentfile.bad_arg_key"),
    ("ARG a}b", "5 agentfile.bad_arg_key"),
    ("LABEL =x", "7 agentfile.bad_label_key"),
    ("LABEL a:b=x", "7 agentfile.bad_label_key"),
    ("CAPABILITY note_save Note", "22 agentfile.bad_capability"),
    ("CAPABILITY _x", "12 agentfile.bad_capability"),
    ("CAPABILITY note_save note_keep", "22 agentfile.unknown_capability"),
    ("CAPABILITY note-save", "12 agentfile.unknown_capability"),
    ("MODEL gpt", "7 agentfile.bad_model"),
    ("MODEL /gpt", "7 agentfile.bad_model"),
    ("MODEL work/", "7 agentfile.bad_model"),
    ("MODEL work/${size}", "7 agentfile.bad_model"),
    ("RUNTIME a b", "11 agentfile.unexpected_word"),
    ("RUNTIME a:b:c", "9 agentfile.bad_image_ref"),
    ("RUNTIME a@sha256:12", "9 agentfile.bad_image_ref"),
    ("RUNTIME a@md5:12", "9 agentfile.bad_image_ref"),
    ("RUNTIME a..b", "9 agentfile.bad_image_ref"),
    ("RUNTIME host", "9 agentfile.bad_image_ref"),
    ("BIN ls host", "8 agentfile.bad_image_ref"),
    ("RUNTIME https://a/b", "9 agentfile.bad_image_ref"),
    ("RUNTIME a.io:99999/b", "9 agentfile.bad_image_ref"),
    ("RUNTIME /a", "9 agentfile.bad_image_ref"),
    ("SKILL file://x", "7 agentfile.bad_image_ref"),
    ("BIN job_wait host:wait", "5 agentfile.reserved_tool"),
    ("BIN job_submit a:b", "5 agentfile.reserved_tool"),
    ("BIN a host:", "7 agentfile.bad_host_program"),
    ("BIN a builtin:raed", "7 agentfile.unknown_builtin"),
    ("BIN a builtin:", "7 agentfile.unknown_builtin"),
    ("RUNTIME builtin:read", "9 agentfile.bad_image_ref"),
    ("SHELL bash", "7 agentfile.bad_shell"),
    ("BIN a host:b/c", "7 agentfile.bad_host_program"),
    ("BIN a host:/usr/../bin/c", "7 agentfile.bad_host_program"),
    ("BIN a host:..", "7 agentfile.bad_host_program"),
    ("CONTEXT A file://", "11 agentfile.bad_path"),
    ("CONTEXT A file:///etc/passwd", "11 agentfile.bad_path"),
    ("CONTEXT A file://a/../../b", "11 agentfile.bad_path"),
    ("ADD https://a.example/b", "5 agentfile.bad_path"),
    ("ADD ..", "5 agentfile.bad_path"),
    ("ADD /etc/passwd", "5 agentfile.bad_path"),
    ("ADD a/b\u{0}c x", "8 agentfile.bad_character"),
    ("NAME a\u{0}b", "7 agentfile.bad_character"),
    ("EXEC", "5 agentfile.bad_exec"),
    ("EXEC serve", "6 agentfile.bad_exec"),
    ("EXEC [\"a\" \"b\"]", "11 agentfile.bad_exec"),
    ("EXEC [\"a\",]", "11 agentfile.bad_exec"),
    ("EXEC [\"a\"", "10 agentfile.bad_exec"),
    ("EXEC [\"a\"]]", "11 agentfile.bad_exec"),
    ("EXEC [a]", "7 agentfile.bad_exec"),
    ("EXEC [ <<E\nE", "8 agentfile.bad_exec"),
    ("LIMIT memroy 1g", "7 agentfile.unknown_limit"),
    ("LIMIT memory=1g", "7 agentfile.unknown_limit"),
    ("LIMIT memory 0", "14 agentfile.bad_limit"),
    ("LIMIT memory 1.5g", "14 agentfile.bad_limit"),
    ("LIMIT memory 1023k", "14 agentfile.bad_limit"),
    ("LIMIT memory 99999999t", "14 agentfile.bad_limit"),
    ("LIMIT disk lots", "12 agentfile.bad_limit"),
    ("LIMIT pids +4", "12 agentfile.bad_limit"),
    ("LIMIT pids 4294967296", "12 agentfile.bad_limit"),
    ("LIMIT cpu-time 90", "16 agentfile.bad_limit"),
    ("LIMIT cpu-time 99999999999999999999s", "16 agentfile.bad_limit"),
    ("LIMIT cpu-time \"\"", "16 agentfile.bad_limit"),
    ("LIMIT budget-usd 1.2345678", "18 agentfile.bad_limit"),
    ("LIMIT budget-usd -1", "18 agentfile.bad_limit"),
    ("LIMIT budget-usd 99999999999999999", "18 agentfile.bad_limit"),
    ("LIMIT budget-tokens 1g", "21 agentfile.bad_limit"),
    ("LIMIT revival-policy never", "22 agentfile.bad_limit"),
    ("NETWORK http://a.example", "9 agentfile.bad_network_host"),
    ("NETWORK a.example b..c", "19 agentfile.bad_network_host"),
    ("NETWORK a.example,10.0.0.0/33", "19 agentfile.bad_network_host"),
    ("NETWORK *.10.0.0.1", "9 agentfile.bad_network_host"),
    ("NETWORK *.[2001:db8::1]", "9 agentfile.bad_network_host"),
    ("NETWORK 10.1.2.300", "9 agentfile.bad_network_host"),
    ("NETWORK 127.1:80", "9 agentfile.bad_network_host"),
    ("NETWORK 127.0.0.1", "9 agentfile.network_closed"),
    ("NETWORK a.example,[::1]:80", "19 agentfile.network_closed"),
    ("NETWORK ::ffff:127.0.0.1", "9 agentfile.network_closed"),
    ("NETWORK LocalHost:8080", "9 agentfile.network_closed"),
    ("NETWORK 169.254.169.254", "9 agentfile.network_closed"),
    ("NETWORK fe80::1", "9 agentfile.network_closed"),
    ("NETWORK none a.example", "9 agentfile.network_mixed"),
    ("NETWORK public a.example", "9 agentfile.network_mixed"),
    ("NETWORK a.example lan", "19 agentfile.network_mixed"),
    ("NETWORK loopback", "9 agentfile.bad_network_host"),
    ("NETWORK loopback:0", "9 agentfile.bad_network_host"),
    ("NETWORK a.example loopback:x", "19 agentfile.bad_network_host"),
    ("NETWORK a.example,host", "19 agentfile.network_mixed"),
    ("MCP a ftp://b", "7 agentfile.bad_mcp_url"),
    ("MCP a https://", "7 agentfile.bad_mcp_url"),
    ("SERVICE my_db postgres", "9 agentfile.bad_service_name"),
    ("SERVICE db postgres port=1", "21 agentfile.unknown_service_option"),
    ("SERVICE db postgres required", "21 agentfile.unknown_service_option"),
    ("SCHEDULE 0 7 * * * \"x\"", "10 agentfile.bad_cron"),
    ("SCHEDULE \"@fortnightly\" \"x\"", "10 agentfile.bad_cron"),
    ("SCHEDULE \"* * * * $\" \"x\"", "10 agentfile.bad_cron"),
    ("SCHEDULE @daily \" \"", "17 agentfile.empty"),
    ("ON \"\" \"x\"", "4 agentfile.empty"),
    ("SERVICE db postgres healthcheck=", "21 agentfile.empty"),
    ("ENV lower=1", "5 env.key_malformed"),
    ("ENV =1", "5 env.key_malformed"),
    ("ENV PATH=/bin", "5 env.key_reserved"),
    ("ENV OPENAI_API_KEY=x", "5 env.key_credential"),
];

#[test]
fn every_bad_value_is_found_where_it_stands() {
    check_lines(LINES);
    for (from, code) in [
        ("/srv/base", "agentfile.bad_parent_path"),
        ("~/base", "agentfile.bad_parent_path"),
        ("a/../b", "agentfile.bad_image_ref"),
        ("${base}", "agentfile.bad_image_ref"),
    ] {
        crate::check_mistakes(&format!("FROM {from}\n"), &[&format!("1:6 {code}")]);
    }
    let mut covered = codes(&[LINES]);
    covered.extend(["agentfile.bad_build_arg", "agentfile.bad_parent_path"]);
    check_covered(ValueMistake::CODES, &covered);
    check_covered(EnvKeyError::CODES, &covered);
}

#[test]
fn a_host_that_no_list_takes_is_answered_with_how_to_write_what_was_meant() {
    for (word, advice) in [
        ("https://a.example/x", "name the host alone"),
        ("*", "`NETWORK public`"),
        ("loopback", "`loopback:5432`"),
        ("loopback:80-90", "`loopback:5432`"),
        ("a.example:80-90", "each port separately"),
        ("a.example:*", "each port separately"),
        ("10.0.0.0/33", "a range as"),
        ("b..c", "`example.com:443`"),
        ("localhost:80", "`loopback:PORT`"),
        ("0.0.0.0", "`loopback:PORT`"),
        ("169.254.169.254", "metadata"),
        ("[fe80::1]:80", "metadata"),
    ] {
        let text = format!("FROM scratch\nNETWORK {word}\n");
        let errors = parse("Agentfile", text.as_bytes(), &args(&[])).expect_err("refused");
        assert!(errors.first().hint().contains(advice), "{word}: {}", errors.first().hint());
    }
}

#[test]
fn a_build_argument_cannot_smuggle_in_a_second_line() {
    for value in ["a\nNAME b", "a\rb", "a\0b", "a\u{1b}b"] {
        let errors = parse("Agentfile", b"FROM scratch\nARG x=1\nNAME ${x}\n", &args(&[("x", value)]))
            .expect_err("refused");
        assert_eq!((errors.first().line, errors.first().code()), (2, "agentfile.bad_build_arg"));
    }
}

#[test]
fn reserved_keys_are_refused_and_their_neighbours_are_not() {
    for key in [
        "PATH",
        "HOME",
        "TMPDIR",
        "LANG",
        "XDG_CONFIG_HOME",
        "XDG_ANYTHING",
        "XDG_",
        "LODGE_AGENT_ROOT",
        "LODGE_X",
        "OTTERS_AGENT_ROOT",
        "OTTERSD_URL",
        "OTTERS_AGENT_TOKEN",
    ] {
        assert_eq!(check_env_key(key), Err(EnvKeyError::Reserved { key: key.to_owned() }));
    }
    for key in ["OPENAI_API_KEY", "X_API_BASE", "_API_KEY"] {
        assert_eq!(check_env_key(key), Err(EnvKeyError::Credential { key: key.to_owned() }));
    }
    let long = "A".repeat(256);
    for key in ["", "1A", "a", "A-B", "A B", "Ä", "A=B", "A\0", &long] {
        assert_eq!(check_env_key(key), Err(EnvKeyError::Malformed { key: key.to_owned() }));
    }
    for key in
        ["_", "A1", "MY_PATH", "XDG", "LODGER", "API_KEY", "RUNTIME_MAX_STEPS", "X_API_KEY_ID", "LANGUAGE"]
    {
        assert_eq!(check_env_key(key), Ok(()), "{key}");
    }
}

#[test]
fn a_value_with_an_unset_argument_says_which_one() {
    let hint = bad("FROM scratch\nMODEL ${model}\n").first().hint();
    assert_eq!(hint, "`${model}` has no value: declare `ARG model=…` above, or pass `--build-arg model=…`");
}

#[test]
fn names_of_sixty_three_characters_are_the_longest() {
    let name = &LONG[..63];
    crate::good(&format!("FROM scratch\nNAME {name}\nCONFIG {name}\nARG {name}\n"));
    assert_eq!(
        bad(&format!("FROM scratch\nNAME {LONG}\nCONFIG {LONG}\nCAPABILITY {LONG}\nARG {LONG}\n"))
            .iter()
            .count(),
        4
    );
}

#[test]
fn hints_show_the_corrected_word() {
    for (line, hint) in [
        ("CONFIG Max_Steps=1", "write `max-steps`"),
        ("CAPABILITY Note.Save", "write `note_save`"),
        ("CAPABILITY note-save", "did you mean `note_save`?"),
        ("CAPABILITY job_sumbit", "did you mean `job_submit`?"),
        ("BIN bash /bin/bash", "a program of this host is `host:/bin/bash`; an image is `name:tag`"),
        ("BIN job_wait host:wait", "remove the line to use Lodge's own, or call this one `my-job-wait`"),
        ("CAPABILITY fly", "remove it, or use one of these"),
        ("ENV my-key=1", "write `MY_KEY`: keys have capital letters, so that no two differ in case only"),
        ("LIMIT memroy 1g", "did you mean `memory`?"),
        ("LIMIT memory=1g", "write `LIMIT memory 1g`, without `=`"),
        ("ADD .env", "give it a name of its own: `ADD path name`"),
        ("NAME a # b", "put comments on separate lines"),
    ] {
        assert_eq!(bad(&format!("FROM scratch\n{line}")).first().hint(), hint);
    }
}
