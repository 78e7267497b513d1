//! Each example plays its script, with real tools.

use lodge_testkit::lodge::until;

use crate::set::{example, stocked};

#[test]
fn the_coder_finds_the_mistake_mends_it_and_runs_the_tests() {
    let lodge = stocked();
    let answer = lodge.cli_ok(["run", &example("coder"), "make the tests pass"]);
    assert!(answer.contains("-        sed 's/[^a-z0-9]/-/g'"), "{answer}");
    assert!(answer.contains("all tests pass") && !answer.contains("WRONG"), "{answer}");
    let found = lodge.cli_ok(["prompt", "coder", "find where slugs are made"]);
    assert!(found.contains("slug/slug.sh:2:slug() {"), "{found}");
}

#[test]
fn the_log_watcher_talks_while_its_job_waits_and_reports_the_line() {
    let lodge = stocked();
    lodge.cli_ok(["run", &example("logwatch"), "-d"]);
    let say = |text: &str| lodge.cli_ok(["prompt", "logwatch", "-s", "demo", text]);
    let answer = say("watch the service");
    let label = "watch=service.log";
    let watch = lodge.cli_ok(["jobs", "ls", "-q", "--label", label]).trim().to_owned();
    assert!(watch.starts_with("job_") && answer.contains(&watch), "{answer}");
    lodge.cli_ok(["jobs", "wait", &watch]);
    assert!(lodge.cli_ok(["jobs", "logs", &watch]).contains("ERROR request 7 failed"));
    until("the service is over, too", || {
        lodge.cli_ok(["jobs", "ls", "-q", "--status", "running"]).is_empty().then_some(())
    });
    let told = say("what is new?");
    assert!(told.contains("WARN pool exhausted") && told.contains("this many requests: 6"), "{told}");
}

#[test]
fn the_researcher_makes_its_request_and_reads_an_answer_with_two_tools() {
    let lodge = stocked();
    let answer = lodge.cli_ok(["run", &example("researcher"), "agreement"]);
    assert!(answer.contains("GET /works?query=agreement&rows=3 HTTP/1.1"), "{answer}");
    assert!(answer.contains("- The part-time parliament, 1998, Lamport, https://doi.org/"), "{answer}");
    assert!(answer.contains("by: Lamport"), "{answer}");
}
