//! `lodge jobs` as scripts see it: ids, listings, codes, and whose bytes go where.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;

use lodge_testkit::lodge::until;
use serde_json::{Value, json};

use crate::terminal::shown;
use crate::world::{ApiWorld, told};

const JOB_FIELDS: &str = "id agent session bin args status exit_code signal error created_at started_at finished_at \
    stdout_bytes stderr_bytes truncated labels";

/// A daemon with an agent `one` that has the usual tools.
async fn with_agent() -> ApiWorld {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "one").await;
    world
}

pub fn workspace(world: &ApiWorld, agent: &str) -> PathBuf {
    let id = world.cli_json(&["--json", "inspect", agent])["id"].as_str().expect("an id").to_owned();
    world.lodge.home().join("agents").join(id).join("workspace")
}

/// Submits and returns the id.
pub fn submit(world: &ApiWorld, args: &[&str], script: &str) -> String {
    let args = [&["jobs", "run", "one"], args, &["--", "sh", "-c", script]].concat();
    let printed = world.lodge.cli_ok(&args);
    let id = printed.strip_suffix('\n').expect("a line");
    assert!(id.starts_with("job_") && !id.contains('\n'), "{printed:?}");
    id.to_owned()
}

/// Waits until the job has this status.
pub fn is(world: &ApiWorld, job: &str, status: &str) -> Value {
    until(&format!("{job} is {status}"), || {
        let view = world.cli_json(&["--json", "jobs", "inspect", job]);
        (view["status"] == status).then_some(view)
    })
}

#[tokio::test]
async fn a_job_is_run_listed_looked_at_and_waited_for() {
    let world = with_agent().await;
    assert_eq!(world.cli_json(&["--json", "jobs", "ls"]), json!([]));
    let (code, out, err) = world.cli(&["jobs", "ls"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let titles = "ID AGENT BIN STATUS EXIT AGE TIME OUTPUT SESSION";
    assert_eq!(out.split_whitespace().collect::<Vec<_>>().join(" "), titles);
    let first = submit(&world, &["--label", "team=web", "--label", "n=1", "-s", "s1"], "echo out; exit 3");
    assert_eq!(world.cli(&["jobs", "wait", &first]), (3, String::new(), String::new()));
    let second =
        submit(&world, &["--label", "team=web", "--priority", "-5", "--timeout", "10m"], "kill -9 $$");
    let (code, out, err) = world.cli(&["job", "wait", &second]);
    assert_eq!((code, out.as_str()), (137, ""));
    assert!(err.starts_with(&format!("{second} ended by signal 9 after ")), "{err}");
    // The newest first, and every filter.
    assert_eq!(world.lodge.cli_ok(["jobs", "ls", "-q"]), format!("{second}\n{first}\n"));
    assert_eq!(world.lodge.cli_ok(["jobs", "ls", "-q", "-n", "1"]), format!("{second}\n"));
    let found = |filter: &[&str]| world.lodge.cli_ok([&["jobs", "ls", "-q"], filter].concat());
    assert_eq!(found(&["--label", "team=web"]), format!("{second}\n{first}\n"));
    assert_eq!(found(&["--label", "team=web", "--label", "n=1"]), format!("{first}\n"));
    assert_eq!(found(&["--session", "s1"]), format!("{first}\n"));
    assert_eq!(found(&["--label", "io.lodge.session-id=s1"]), format!("{first}\n"));
    assert_eq!(found(&["--agent", "one", "--status", "done"]), format!("{second}\n{first}\n"));
    for nothing in [["--status", "running"], ["--session", "s2"], ["--label", "io.lodge.session-id=none"]] {
        assert_eq!(found(&nothing), "", "{nothing:?}");
    }
    let listed = world.lodge.cli_ok(["jobs", "ls"]);
    let row: Vec<&str> = listed.lines().last().expect("a row").split("   ").collect();
    assert_eq!((row[0], row[1]), (first.as_str(), "one"));
    assert!(listed.contains("sh -c \"echo out; exit 3\"") && listed.contains("signal 9"), "{listed}");
    // Everything about one, by a beginning of its id.
    let view = world.cli_json(&["--json", "jobs", "inspect", &first[..first.len() - 1]]);
    JOB_FIELDS.split_whitespace().for_each(|field| assert!(view.get(field).is_some(), "{field}: {view:#}"));
    assert_eq!(
        (&view["exit_code"], &view["stdout_bytes"], &view["session"]),
        (&json!(3), &json!(4), &json!("s1"))
    );
    let text = world.lodge.cli_ok(["jobs", "inspect", &second]);
    for said in ["signal 9", "timeout", "priority   -5", "team=web"] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let both = world.cli_json(&["--json", "jobs", "inspect", &first, &second]);
    assert_eq!(both.as_array().map(Vec::len), Some(2));
}

#[tokio::test]
async fn what_cannot_be_is_said_with_its_code() {
    let world = with_agent().await;
    let refused = |args: &[&str], code: i32, words: &str| {
        let (given, out, err) = world.cli(args);
        assert_eq!((given, out.as_str()), (code, ""), "{args:?}: {err}");
        assert!(err.contains(words), "{args:?}: {err}");
    };
    refused(&["jobs", "run", "one"], 2, "bin");
    refused(&["jobs", "run", "nobody", "--", "sh"], 1, "no agent `nobody`");
    refused(&["jobs", "run", "one", "--", "make"], 1, "cat, env, id, ls, sh, sleep, touch");
    refused(&["jobs", "run", "one", "--label", "io.lodge.session-id=x", "--", "sh"], 1, "--session");
    refused(&["jobs", "run", "one", "--timeout", "soon", "--", "sh"], 2, "such as 90s");
    refused(&["jobs", "run", "one", "--stdin", "@/dev/zero", "--", "sh"], 1, "`/dev/zero` has more than");
    refused(&["jobs", "run", "one", "--stdin", "@/no/such/file", "--", "sh"], 2, "/no/such/file");
    refused(&["jobs", "ls", "--label", "noequals"], 2, "expected key=value");
    let twice = ["--label", "a=1", "--label", "b=1", "--label", "a=2"];
    refused(&[&["jobs", "ls"], &twice[..]].concat(), 2, "`a=1` or `a=2`");
    refused(&[&["jobs", "run", "one"], &twice[..], &["--", "sh"]].concat(), 2, "`--label a=…` is given");
    refused(&["jobs", "ls", "--status", "orphaned"], 2, "pending, running, done, error, cancelled");
    for verb in ["inspect", "logs", "wait", "cancel"] {
        refused(&["jobs", verb, "job_does_not_exist"], 1, "job_does_not_exist");
    }
    assert_eq!(world.lodge.cli_ok(["jobs", "ls", "-q"]), "", "nothing was written");
    world.lodge.cli_ok(["stop", "one"]);
    refused(&["jobs", "run", "one", "--", "sh"], 1, "one");
}

#[tokio::test]
async fn run_wait_is_the_program_itself() {
    let world = with_agent().await;
    let script = "cat; echo err >&2; printf '\\377\\000'; exit 7";
    let run = |stdin: &[&str]| {
        let args = [&["jobs", "run", "one", "--wait"], stdin, &["--", "sh", "-c", script]].concat();
        let mut child = world
            .lodge
            .cli_command(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("lodge");
        child.stdin.take().expect("stdin").write_all(b"piped \xfe").expect("a pipe");
        child.wait_with_output().expect("an end")
    };
    let check = |stdin: &[&str], read: &[u8]| {
        let output = run(stdin);
        assert_eq!(output.status.code(), Some(7), "{stdin:?}");
        assert_eq!(output.stdout, [read, b"\xff\0"].concat(), "{stdin:?}");
        assert_eq!(output.stderr, b"err\n", "{stdin:?}");
    };
    check(&[], b"");
    check(&["--stdin", "a text\n"], b"a text\n");
    check(&["--stdin", "-"], b"piped \xfe");
    let file = world.lodge.dir().join("given");
    fs::write(&file, b"\x00file").expect("a file");
    check(&["--stdin", &format!("@{}", file.display())], b"\x00file");
    // As JSON it is the job at its end.
    let (code, out, _) = told(&run(&["--json"]));
    let view: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((code, &view["status"], &view["exit_code"]), (7, &json!("done"), &json!(7)));
    assert_eq!(
        world.lodge.cli_ok(["jobs", "run", "one", "--wait", "sh", "-c", "echo $0 $1", "--json", "-q"]),
        "--json -q\n"
    );
}

#[tokio::test]
async fn waiting_ends_with_the_first_code_that_is_not_zero_and_says_what_a_code_cannot() {
    let world = with_agent().await;
    let ends = |script: &str| {
        let job = submit(&world, &[], script);
        is(&world, &job, "done");
        job
    };
    let (fine, three, four) = (ends("true"), ends("exit 3"), ends("exit 4"));
    let wait = |jobs: &[&str]| world.cli(&[&["jobs", "wait"], jobs].concat());
    assert_eq!(wait(&[&fine, &fine]), (0, String::new(), String::new()));
    assert_eq!(wait(&[&fine, &three, &four]).0, 3);
    assert_eq!(wait(&[&four, &three]).0, 4);
    let (code, _, err) = wait(&["job_none", &four]);
    assert!(code == 1 && err.contains("job_none"), "{code} {err}");
    let views = world.cli(&["--json", "jobs", "wait", &three, &fine]);
    let views: Value = serde_json::from_str(&views.1).expect("JSON");
    assert_eq!((&views[0]["exit_code"], &views[1]["exit_code"]), (&json!(3), &json!(0)));
    // A job that times out is an error, a cancelled one is reported as such, and one that keeps running is not
    // affected.
    let late = submit(&world, &["--timeout", "1s"], "sleep 600");
    let (code, _, err) = wait(&[&late]);
    assert!(code == 1 && err.contains("timed out") && err.contains("failed"), "{code} {err}");
    let endless = submit(&world, &[], "sleep 600 & sleep 600");
    is(&world, &endless, "running");
    let (code, out, err) = world.cli(&["jobs", "wait", &endless, "--timeout", "1s"]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains(&format!("{endless} is still running")), "{err}");
    assert_eq!(world.lodge.cli_ok(["jobs", "cancel", &endless]), format!("{endless}\n"));
    let (code, _, err) = wait(&[&endless]);
    assert!(code == 1 && err.contains("was cancelled"), "{code} {err}");
    let (code, _, err) = world.cli(&["jobs", "cancel", &endless]);
    assert!(code == 1 && err.contains("async job not currently running"), "{code} {err}");
}

#[tokio::test]
async fn logs_are_the_bytes_that_were_written_each_where_it_belongs() {
    let world = with_agent().await;
    let script =
        "echo a; echo b >&2; until test -e go; do sleep 0.02; done; echo c; echo d >&2; printf '\\303\\050'";
    let job = submit(&world, &[], script);
    until("its keeper has the beginning", || {
        let view = world.cli_json(&["--json", "jobs", "inspect", &job]);
        (view["stdout_bytes"] == 2 && view["stderr_bytes"] == 2).then_some(())
    });
    fs::write(workspace(&world, "one").join("go"), "").expect("a file");
    world.lodge.cli(["jobs", "wait", &job]);
    let logs = |args: &[&str]| world.lodge.cli([&["jobs", "logs", job.as_str()], args].concat());
    let output = logs(&[]);
    assert_eq!(
        (output.stdout.as_slice(), output.stderr.as_slice()),
        (b"a\nc\n\xc3\x28".as_slice(), b"b\nd\n".as_slice())
    );
    assert_eq!(logs(&["-f"]).stdout, output.stdout);
    let check = |args: &[&str], expected: &[u8]| {
        let output = logs(args);
        assert_eq!(output.stdout, expected, "{args:?}");
        assert_eq!(output.stderr, b"", "{args:?}");
    };
    check(&["--stderr"], b"b\nd\n");
    check(&["--offset", "2"], b"c\n\xc3\x28");
    check(&["--stderr", "--offset", "3"], b"\n");
    check(&["--offset", "99"], b"");
    check(&["--stderr", "--tail", "1"], b"d\n");
    check(&["--stderr", "-n", "0"], b"");
    check(&["--stderr", "-n", "5"], b"b\nd\n");
    assert_eq!(logs(&["--tail", "2"]).stdout, b"c\n\xc3\x28");
    // What two streams wrote within a moment has no order; what was there before the rest has.
    let merged = logs(&["--merged"]).stdout;
    assert_eq!(merged.len(), 10);
    let place = |letter: u8| merged.iter().position(|byte| *byte == letter).expect("a letter");
    assert!(place(b'a').max(place(b'b')) < place(b'c').min(place(b'd')), "{merged:?}");
    // Where both go to one file it is as if the program had written to it.
    let path = world.lodge.dir().join("both");
    let file = File::create(&path).expect("a file");
    let mut command = world.lodge.cli_command(["jobs", "logs", &job]);
    command.stdout(file.try_clone().expect("a file")).stderr(file);
    assert!(command.status().expect("lodge").success());
    assert_eq!(fs::read(&path).expect("a file"), merged);
    // A terminal gets colours, if they are wanted, and is not steered; other letters come whole.
    let job = submit(&world, &[], "printf '\\033[31m€uro\\033[0m\\033[2J\\n'");
    world.lodge.cli(["jobs", "wait", &job]);
    assert_eq!(shown(&world, &["jobs", "logs", &job], None), "\u{1b}[31m€uro\u{1b}[0m\\x1b[2J\r\n");
    assert_eq!(shown(&world, &["jobs", "logs", &job], Some("1")), "€uro\\x1b[2J\r\n");
    let lines = world.lodge.cli_ok(["--json", "jobs", "logs", &job, "--merged"]);
    let line: Value = serde_json::from_str(lines.lines().next().expect("a line")).expect("JSON Lines");
    assert_eq!((&line["stream"], &line["offset"]), (&json!("merged"), &json!(0)));
}

#[tokio::test]
async fn what_was_not_kept_is_reported_with_how_much_and_where() {
    let world = with_agent().await;
    let script = "i=0; while [ $i -lt 20000 ]; do echo \"line $i\"; i=$((i+1)); done";
    let job = submit(&world, &["--output", "8k"], script);
    assert_eq!(world.cli(&["jobs", "wait", &job]).0, 0);
    let whole: String = (0..20_000).map(|at| format!("line {at}\n")).collect();
    let view = world.cli_json(&["--json", "jobs", "inspect", &job]);
    assert_eq!((&view["stdout_bytes"], &view["truncated"]), (&json!(whole.len()), &json!(true)));
    let dropped = view["dropped_bytes"].as_u64().expect("a number") as usize;
    let (code, out, err) = world.cli(&["jobs", "logs", &job]);
    assert_eq!((code, out.len() + dropped), (0, whole.len()), "{err}");
    assert_eq!(err, format!("[{dropped} bytes of stdout were not kept: 6144 to {}]\n", 6144 + dropped));
    assert_eq!(out[..6144], whole[..6144]);
    assert_eq!(out[6144..], whole[6144 + dropped..]);
    assert_eq!(world.cli(&["jobs", "logs", &job, "-n", "1"]), (0, "line 19999\n".to_owned(), String::new()));
    let listed = world.lodge.cli_ok(["jobs", "ls"]);
    assert!(listed.contains("KiB cut"), "{listed}");
}

/// Enough jobs to need more than one page, with both labels only on the oldest.
const MANY: u32 = 24_000;
const COPIES: &str = "
    CREATE TEMP TABLE copies AS
        WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 24000)
        SELECT printf('job_%026d', i) AS copy, jobs.* FROM jobs, n;
    UPDATE copies SET id = copy, archived = 1, told = 1;
    ALTER TABLE copies DROP COLUMN copy;
    BEGIN;
    INSERT INTO jobs SELECT * FROM copies;
    INSERT INTO job_labels SELECT 'a', '1', id FROM copies WHERE rowid % 2 = 0 OR rowid = 1;
    INSERT INTO job_labels SELECT 'b', '1', id FROM copies WHERE rowid % 2 = 1;
    COMMIT;";

#[tokio::test]
async fn a_listing_goes_on_over_its_pages_also_over_one_without_a_job() {
    let mut world = with_agent().await;
    let newest = submit(&world, &[], "exit 0");
    assert_eq!(world.cli(&["jobs", "wait", &newest]).0, 0);
    world.lodge.kill9();
    let database = rusqlite::Connection::open(world.lodge.home().join("daemon.db")).expect("a database");
    database.execute_batch(COPIES).expect("copies of the job");
    drop(database);
    world.lodge.start();
    let job = |number: u32| format!("job_{number:026}");
    let all: Vec<String> = std::iter::once(newest).chain((1..=MANY).rev().map(job)).collect();
    let listed = |args: &[&str]| world.lodge.cli_ok([&["jobs", "ls", "-q"], args].concat());
    let lines = |jobs: &[String]| jobs.iter().map(|job| format!("{job}\n")).collect::<String>();
    assert!(listed(&[]) == lines(&all), "not all of them, or in another order");
    assert!(listed(&["-n", "1203"]) == lines(&all[..1203]), "not the newest");
    assert!(listed(&["-n", "500"]) == lines(&all[..500]), "not the newest");
    // Both labels: found behind all that have but one of them.
    let both = ["--label", "a=1", "--label", "b=1"];
    for limit in [&[][..], &["-n", "1"], &["-n", "2"]] {
        assert_eq!(listed(&[&both, limit].concat()), lines(&[job(1)]), "{limit:?}");
    }
    let mut api = world.checked().await;
    let asked = json!({"labels": {"a": "1", "b": "1"}});
    let first = api.ok("job/list", asked.clone()).await;
    assert_eq!(first["jobs"], json!([]));
    let mut second = asked;
    second["before"] = first["next"].clone();
    assert!(second["before"].is_string(), "{first}");
    let second = api.ok("job/list", second).await;
    assert_eq!((&second["jobs"][0]["id"], &second["next"]), (&json!(job(1)), &Value::Null));
}

#[tokio::test]
async fn a_narrow_terminal_gets_a_narrow_listing_of_jobs() {
    let world = with_agent().await;
    let job = submit(&world, &["-s", "a-session-with-a-long-name"], &format!("echo {}", "x".repeat(200)));
    is(&world, &job, "done");
    let listed = shown(&world, &["jobs", "ls"], Some("1"));
    let longest = listed.lines().map(|line| line.chars().count()).max();
    assert!(longest <= Some(80) && listed.contains(&job), "{listed}");
}
