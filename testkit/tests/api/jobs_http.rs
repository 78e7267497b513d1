//! `GET /v1/jobs/…`: the bytes of a job, from any offset, while it runs and after.

use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Write};
use std::net::TcpStream;

use lodge_testkit::lodge::{Lodge, PATIENCE, until};
use serde_json::{Value, json};

use crate::checked::CheckedClient;
use crate::jobs_api::{go, is, over, submit};
use crate::tokens::issue;
use crate::world::{AGENTFILE, ApiWorld, id, kill};

/// A response whose body is read as it comes.
struct StreamedResponse {
    status: u16,
    head: Vec<(String, String)>,
    reader: BufReader<TcpStream>,
    /// What is left of a body with a known length.
    left: Option<u64>,
}

impl StreamedResponse {
    fn ask(lodge: &Lodge, token: &str, method: &str, path: &str, headers: &str) -> StreamedResponse {
        let addr = lodge.http_addr();
        let mut stream = TcpStream::connect(&addr).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        write!(
            stream,
            "{method} /v1/jobs/{path} HTTP/1.1\r\nconnection: close\r\nhost: {addr}\r\nauthorization: Bearer {token}\r\n{headers}\r\n"
        )
        .expect("a request");
        let mut reader = BufReader::new(stream);
        let mut lines = std::iter::from_fn(|| {
            let mut line = String::new();
            reader.read_line(&mut line).expect("a line");
            Some(line.trim_end().to_owned()).filter(|line| !line.is_empty())
        });
        let status = lines.next().expect("a status");
        let status = status.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        let split =
            |line: String| line.split_once(": ").map(|(name, value)| (name.to_owned(), value.to_owned()));
        let head: Vec<(String, String)> = lines.filter_map(split).collect();
        let mut body = StreamedResponse { status, head, reader, left: None };
        body.left = body.header("content-length").and_then(|length| length.parse().ok());
        body
    }

    fn get(lodge: &Lodge, path: &str) -> StreamedResponse {
        StreamedResponse::ask(lodge, &lodge.token(), "GET", path, "")
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The next bytes; none at the end. An error: the body was truncated.
    fn next(&mut self) -> std::io::Result<Option<Vec<u8>>> {
        if let Some(left) = &mut self.left {
            let mut bytes = vec![0; usize::try_from((*left).min(65_536)).expect("a length")];
            self.reader.read_exact(&mut bytes)?;
            *left -= bytes.len() as u64;
            return Ok(Some(bytes).filter(|bytes| !bytes.is_empty()));
        }
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Err(Error::from(ErrorKind::UnexpectedEof));
        }
        let length = usize::from_str_radix(line.trim_end(), 16).map_err(|_| Error::other(line))?;
        let mut bytes = vec![0; length + 2];
        self.reader.read_exact(&mut bytes)?;
        bytes.truncate(length);
        Ok(Some(bytes).filter(|bytes| !bytes.is_empty()))
    }

    /// At least this many bytes.
    fn at_least(&mut self, count: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while all.len() < count {
            all.extend(self.next().expect("bytes").expect("more"));
        }
        all
    }

    fn rest(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(bytes) = self.next().expect("bytes") {
            all.extend(bytes);
        }
        all
    }

    /// Reads until the body is truncated, which must happen.
    fn cut(&mut self) {
        loop {
            match self.next() {
                Ok(Some(_)) => {}
                Ok(None) => panic!("it ended as if it were whole"),
                Err(error) => {
                    assert!(!matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
                    return;
                }
            }
        }
    }
}

/// What `seq 1 last` prints.
fn numbers(last: u32) -> Vec<u8> {
    let mut all = Vec::new();
    (1..=last).for_each(|number| writeln!(all, "{number}").expect("room"));
    all
}

async fn counting(api: &mut CheckedClient) -> String {
    let content = format!("{AGENTFILE}BIN seq host:seq \"numbers\"\n");
    let created = api.ok("agent/create", json!({"content": content, "name": "one"})).await;
    api.agent_is("one", "ready").await;
    id(&created).to_owned()
}

#[tokio::test]
async fn what_a_job_wrote_is_given_as_it_is_from_any_offset_and_in_ranges() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = counting(&mut api).await;
    let job = submit(&mut api, &agent, "seq 1 100000; printf oh >&2").await;
    over(&mut api, &job).await;
    let whole = numbers(100_000);
    let mut body = StreamedResponse::get(&world.lodge, &format!("{job}/stdout"));
    assert_eq!(body.status, 200);
    for (name, value) in [
        ("content-type", "text/plain; charset=utf-8"),
        ("x-content-type-options", "nosniff"),
        ("accept-ranges", "bytes"),
        ("lodge-offset", "0"),
        ("content-length", whole.len().to_string().as_str()),
    ] {
        assert_eq!(body.header(name), Some(value), "{name}");
    }
    assert!(body.rest() == whole);
    assert_eq!(StreamedResponse::get(&world.lodge, &format!("{job}/stderr")).rest(), b"oh");
    assert_eq!(
        StreamedResponse::get(&world.lodge, &format!("{job}/merged?follow=1")).rest().len(),
        whole.len() + 2
    );
    for offset in [1, 4_096, 131_072, whole.len() - 1, whole.len(), whole.len() + 9] {
        let mut body = StreamedResponse::get(&world.lodge, &format!("{job}/stdout?offset={offset}"));
        assert!(
            (body.status, body.rest().as_slice()) == (200, whole.get(offset..).unwrap_or_default()),
            "{offset}"
        );
    }
    let range = |range: &str| {
        StreamedResponse::ask(&world.lodge, &world.lodge.token(), "GET", &format!("{job}/stdout"), range)
    };
    for (header, from, to) in [
        ("bytes=0-9", 0, 10),
        ("bytes=1000-200000", 1_000, 200_001),
        ("bytes=500000-", 500_000, whole.len()),
        ("bytes=-5", whole.len() - 5, whole.len()),
    ] {
        let mut body = range(&format!("range: {header}\r\n"));
        let told = format!("bytes {from}-{}/{}", to - 1, whole.len());
        assert_eq!((body.status, body.header("content-range")), (206, Some(told.as_str())), "{header}");
        assert!(body.rest() == whole[from..to], "{header}");
    }
    let behind = range("range: bytes=999999999-\r\n");
    assert_eq!(behind.status, 416);
    assert!(range("range: bytes=0-1,4-5\r\n").rest() == whole, "several ranges are the whole");
    let head =
        StreamedResponse::ask(&world.lodge, &world.lodge.token(), "HEAD", &format!("{job}/stdout"), "");
    assert_eq!((head.status, head.left), (200, Some(whole.len() as u64)));
    // The same through a unique beginning of the id.
    assert!(
        StreamedResponse::get(&world.lodge, &format!("{}/stdout", &job[..job.len() - 1])).rest() == whole
    );
}

#[tokio::test]
async fn bytes_that_are_no_text_are_said_to_be_none() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let bytes: Vec<u8> = (0..=255).rev().collect();
    let job = json!({"agent": agent, "bin": "cat", "stdin_base64": lodge_proto::base64::encode(&bytes)});
    let job = id(&api.ok("job/submit", job).await).to_owned();
    over(&mut api, &job).await;
    let mut body = StreamedResponse::get(&world.lodge, &format!("{job}/stdout"));
    assert_eq!(body.header("content-type"), Some("application/octet-stream"));
    assert_eq!(body.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(body.rest(), bytes);
}

#[tokio::test]
async fn a_request_for_bytes_that_cannot_be_given_says_why() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let (one, two) = (world.agent(&mut api, "one").await, world.agent(&mut api, "two").await);
    let (own, theirs) = (submit(&mut api, &one, "echo one").await, submit(&mut api, &two, "echo two").await);
    over(&mut api, &own).await;
    over(&mut api, &theirs).await;
    let (_, token) = issue(&mut api, json!({"agent": one})).await;
    assert_eq!(
        StreamedResponse::ask(&world.lodge, &token, "GET", &format!("{own}/stdout"), "").rest(),
        b"one\n"
    );
    let operator = world.lodge.token();
    for (token, path, status, code) in [
        (operator.as_str(), "job_0/stdout".to_owned(), 404, "job.not_found"),
        (&operator, format!("{own}/stdin"), 400, "params.invalid"),
        (&operator, format!("{own}/stdout?offset=x"), 400, "params.invalid"),
        (&operator, format!("{own}/stdout?offest=1"), 400, "params.invalid"),
        (&operator, format!("{own}/stdout?follow=maybe"), 400, "params.invalid"),
        (&operator, own.clone(), 404, "method.not_found"),
        (&token, format!("{theirs}/stdout"), 404, "job.not_found"),
        ("nonsense", format!("{own}/stdout"), 401, "auth.invalid"),
    ] {
        let mut body = StreamedResponse::ask(&world.lodge, token, "GET", &path, "");
        assert_eq!(body.status, status, "{path}");
        let error: Value = serde_json::from_slice(&body.rest()).expect("JSON");
        api.schemas.error(&error["error"]);
        assert_eq!(error["error"]["data"]["code"], code, "{path}");
    }
}

#[tokio::test]
async fn followers_get_each_byte_when_it_comes_and_their_end_with_the_job() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let job =
        submit(&mut api, &agent, "echo one; until test -e go; do sleep 0.02; done; echo two; echo three >&2")
            .await;
    let lodge = &world.lodge;
    let mut first = StreamedResponse::get(lodge, &format!("{job}/stdout?follow=1"));
    let mut second = StreamedResponse::get(lodge, &format!("{job}/stdout?follow=true&offset=2"));
    let mut merged = StreamedResponse::get(lodge, &format!("{job}/merged?follow=1"));
    assert_eq!(
        (first.status, first.left, first.header("content-type")),
        (200, None, Some("text/plain; charset=utf-8"))
    );
    assert_eq!(
        (first.at_least(4), second.at_least(2), merged.at_least(4)),
        (b"one\n".into(), b"e\n".into(), b"one\n".into())
    );
    // Who does not follow gets what there is.
    assert_eq!(StreamedResponse::get(lodge, &format!("{job}/stdout")).rest(), b"one\n");
    // One of them disconnects, without effect on the others.
    drop(second);
    go(&world, &agent);
    assert_eq!(first.rest(), b"two\n");
    let mut rest = merged.rest();
    rest.sort_unstable();
    let mut both = b"two\nthree\n".to_vec();
    both.sort_unstable();
    assert_eq!(rest, both);
    assert_eq!(StreamedResponse::get(lodge, &format!("{job}/stdout?follow=1&offset=4")).rest(), b"two\n");
    let job = submit(&mut api, &agent, "exit 0").await;
    assert_eq!(StreamedResponse::get(lodge, &format!("{job}/stdout?follow=1")).rest(), b"");
}

#[tokio::test]
async fn where_output_was_not_kept_the_offsets_say_so_and_the_bytes_go_on_behind_it() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = counting(&mut api).await;
    let job = json!({"agent": agent, "bin": "seq", "args": ["1", "100000"], "output": "8k"});
    let job = id(&api.ok("job/submit", job).await).to_owned();
    let done = over(&mut api, &job).await;
    let whole = numbers(100_000);
    let dropped = usize::try_from(done["dropped_bytes"].as_u64().expect("a number")).expect("a number");
    assert_eq!((&done["truncated"], &done["stdout_bytes"]), (&json!(true), &json!(whole.len())));
    assert!(whole.len() - dropped <= 8 << 10 && whole.len() - dropped >= 6 << 10, "{dropped} were dropped");
    let (mut pieces, mut offset, mut missing) = (Vec::new(), 0, 0);
    loop {
        let piece = api.ok("job/output", json!({"job": job, "offset": offset})).await;
        let number = |key: &str| usize::try_from(piece[key].as_u64().expect("a number")).expect("a number");
        assert_eq!(number("offset"), offset + number("dropped"));
        missing += number("dropped");
        let data = piece["data"].as_str().expect("data").as_bytes();
        assert!(data == &whole[number("offset")..number("next")], "other bytes at {}", number("offset"));
        pieces.extend_from_slice(data);
        offset = number("next");
        if piece["end"] == true {
            break;
        }
    }
    assert_eq!((offset, missing, pieces.len()), (whole.len(), dropped, whole.len() - dropped));
    let raw = |path: &str, headers: &str| {
        StreamedResponse::ask(&world.lodge, &world.lodge.token(), "GET", &format!("{job}/{path}"), headers)
    };
    // The length is unknown, and ranges are not available.
    let mut body = raw("stdout", "range: bytes=0-9\r\n");
    assert_eq!((body.status, body.left, body.header("accept-ranges")), (200, None, None));
    assert!(body.rest() == pieces);
    let gap = whole.len() / 2;
    let mut behind = raw(&format!("stdout?offset={gap}"), "");
    let from: usize = behind.header("lodge-offset").and_then(|from| from.parse().ok()).expect("an offset");
    assert!(from > gap && behind.rest() == whole[from..], "{from}");
}

#[tokio::test]
async fn output_that_was_removed_is_gone_and_not_merely_empty() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = counting(&mut api).await;
    let sandbox = api.ok("agent/get", json!({"agent": agent})).await["sandbox"].clone();
    let execs = world.lodge.home().join("run").join(sandbox.as_str().expect("a sandbox")).join("exec");
    let mut jobs = Vec::new();
    for _ in 0..2 {
        let job = submit(&mut api, &agent, "seq 1 120000").await;
        over(&mut api, &job).await;
        until("its output is archived", || (!execs.join(&job).exists()).then_some(()));
        jobs.push(job);
    }
    let (old, new) = (&jobs[0], &jobs[1]);
    std::fs::write(world.lodge.home().join("lodged.yaml"), "serve:\n  job-retention-bytes: 1m\n")
        .expect("a file");
    api.ok("daemon/reload", json!({})).await;
    let view = api.until("job/get", json!({"job": old}), |job| job["output_removed"] == true).await;
    assert_eq!((&view["status"], &view["truncated"]), (&json!("done"), &json!(true)));
    api.refused("job/output", json!({"job": old}), "job.output_removed").await;
    let body = StreamedResponse::get(&world.lodge, &format!("{old}/stdout"));
    assert_eq!(body.status, 410);
    assert!(StreamedResponse::get(&world.lodge, &format!("{new}/stdout")).rest() == numbers(120_000));
}

#[tokio::test]
async fn a_body_whose_bytes_went_with_the_archive_ends_in_order_and_promises_no_length() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = counting(&mut api).await;
    let sandbox = api.ok("agent/get", json!({"agent": agent})).await["sandbox"].clone();
    let execs = world.lodge.home().join("run").join(sandbox.as_str().expect("a sandbox")).join("exec");
    let job = submit(&mut api, &agent, "seq 1 1000").await;
    over(&mut api, &job).await;
    until("its output is archived", || (!execs.join(&job).exists()).then_some(()));
    world.lodge.kill9();
    for tail in ["", "-wal", "-shm"] {
        drop(std::fs::remove_file(world.lodge.home().join(format!("output.db{tail}"))));
    }
    world.lodge.start();
    for headers in ["", "range: bytes=0-9\r\n"] {
        let path = format!("{job}/stdout");
        let mut body = StreamedResponse::ask(&world.lodge, &world.lodge.token(), "GET", &path, headers);
        assert_eq!((body.status, body.left, body.header("accept-ranges")), (200, None, None));
        assert_eq!(body.header("lodge-offset"), Some("3893"), "where the bytes that are there begin");
        assert_eq!(body.rest(), b"");
    }
}

/// The memory of the daemon that is its own, in bytes.
fn own_memory(lodge: &Lodge) -> u64 {
    let pid = lodge.pid().expect("a daemon");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a line");
    line.split_whitespace().next().and_then(|number| number.parse::<u64>().ok()).expect("a number") * 1024
}

#[tokio::test]
async fn a_follower_that_reads_nothing_costs_no_memory_and_gets_everything_later() {
    const LAST: u32 = 4_500_000;
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = counting(&mut api).await;
    let job = submit(&mut api, &agent, &format!("seq 1 {LAST}")).await;
    let mut slow = StreamedResponse::get(&world.lodge, &format!("{job}/stdout?follow=1"));
    let mut quick = StreamedResponse::get(&world.lodge, &format!("{job}/stdout?follow=1"));
    let before = own_memory(&world.lodge);
    let whole = numbers(LAST);
    assert!(whole.len() > 32 << 20, "too little to tell");
    assert!(quick.rest() == whole, "the quick one");
    let done = over(&mut api, &job).await;
    assert_eq!(done["stdout_bytes"], json!(whole.len()));
    let grown = own_memory(&world.lodge).saturating_sub(before);
    assert!(grown < 24 << 20, "{grown} bytes more for one that reads nothing");
    assert!(slow.rest() == whole, "the slow one");
}

#[tokio::test]
async fn a_body_that_the_end_of_the_daemon_or_of_the_token_cuts_does_not_look_whole() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let job = submit(&mut api, &agent, "echo one; until test -e go; do sleep 0.02; done; echo two").await;
    is(&mut api, &job, "running").await;
    let (token_id, token) = issue(&mut api, json!({"agent": "one"})).await;
    let path = format!("{job}/stdout?follow=1");
    let mut theirs = StreamedResponse::ask(&world.lodge, &token, "GET", &path, "");
    let mut ours = StreamedResponse::get(&world.lodge, &path);
    assert_eq!((theirs.at_least(4), ours.at_least(4)), (b"one\n".into(), b"one\n".into()));
    api.ok("token/revoke", json!({"token": token_id})).await;
    theirs.cut();
    kill(i32::try_from(world.lodge.pid().expect("a daemon")).expect("a pid"), libc::SIGTERM);
    ours.cut();
    assert_eq!(world.lodge.wait_killed(PATIENCE), Some(false));
    // The job is not affected, and the rest can be read from the current offset.
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    until("the job is there", || {
        let mut body = StreamedResponse::get(&world.lodge, &format!("{job}/stdout?offset=0"));
        (body.status == 200 && body.rest() == b"one\n").then_some(())
    });
    let mut rest = StreamedResponse::get(&world.lodge, &format!("{job}/stdout?follow=1&offset=4"));
    go(&world, &agent);
    assert_eq!(rest.rest(), b"two\n");
    assert_eq!(over(&mut api, &job).await["exit_code"], 0);
}
