//! Cold start: from the exec of `lodged` until its first answer.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use lodge_testkit::lodge::{Lodge, PATIENCE};

use crate::floor::Floors;
use crate::sample::Sample;
use crate::table::{BenchRow, BenchTable, NumberBound};
use crate::{BenchSizes, fill, proc};

/// Between two looks at the socket.
const LOOK: Duration = Duration::from_micros(200);
/// What stopped agents and their events may add to a start.
const ADDED_MS_MAX: f64 = 20.0;
const ADDED_MB_MAX: f64 = 2.0;
/// After a start, for what is released later.
const SETTLE: Duration = Duration::from_secs(2);

pub(crate) fn run(sizes: BenchSizes, floors: &mut Floors, table: &mut BenchTable) {
    let (mut empty, mut existing, mut fsync) = (Sample::default(), Sample::default(), Sample::default());
    for _ in 0..sizes.starts {
        let mut lodge = quiet();
        fsync.extend(&floors.fsync(5));
        empty.push(start(&mut lodge));
        lodge.kill9();
        fsync.extend(&floors.fsync(5));
        existing.push(start(&mut lodge));
    }
    let hold = |fsync: &Sample, ms: f64, words: &str| NumberBound::at_most(words, 2.0 * fsync.p50() + ms);
    let short = hold(&fsync, 15.0, "2 fsync + 15 ms");
    let row = |what: &str, sample: &Sample, fsync: &Sample| {
        BenchRow::times(format!("start to first answer, {what}"), sample).with_floor("fsync", fsync.p50())
    };
    table.row(row("empty directory", &empty, &fsync).hold(short.clone()));
    table.row(row("existing one, after kill -9", &existing, &fsync).hold(short));

    let (mut small, mut large) =
        (fill::filled(1, fill::EVENTS_A_TURN), fill::filled(sizes.filled_agents, sizes.filled_events));
    // The first one counts what was put there from outside.
    for lodge in [&mut small, &mut large] {
        start(lodge);
        lodge.kill9();
    }
    let (mut few, mut filled, mut fsync) = (Sample::default(), Sample::default(), Sample::default());
    for _ in 0..sizes.filled_starts {
        fsync.extend(&floors.fsync(10));
        for (lodge, sample) in [(&mut small, &mut few), (&mut large, &mut filled)] {
            sample.push(start(lodge));
            lodge.kill9();
        }
    }
    let what = format!("{} stopped agents, {} events", sizes.filled_agents, sizes.filled_events);
    table.row(row(&what, &filled, &fsync).hold(hold(&fsync, 100.0, "2 fsync + 100 ms")));
    let added = BenchRow::new("  more than with one stopped agent", "ms", filled.p50() - few.p50());
    table.row(added.hold(NumberBound::at_most("", ADDED_MS_MAX)));
    if let (Some(few), Some(many)) = (idle_kb(&mut small), idle_kb(&mut large)) {
        let mb = (many as f64 - few as f64) / 1024.0;
        let row = BenchRow::new("  memory of its own, more than with one", "MB", mb);
        table.row(row.hold(NumberBound::at_most("", ADDED_MB_MAX)));
    }
}

/// Memory of a daemon's own some time after its start.
fn idle_kb(lodge: &mut Lodge) -> Option<u64> {
    start(lodge);
    std::thread::sleep(SETTLE);
    let own = lodge.pid().and_then(proc::anonymous_kb);
    lodge.kill9();
    own
}

/// A state directory whose daemon logs and listens as one does by default: little, and at the same port every time.
pub(crate) fn quiet() -> Lodge {
    let mut lodge = Lodge::new();
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    lodge.set_env("LODGED_HTTP_ADDR", &free.expect("a free port").to_string());
    lodge.set_env("LODGED_LOG_LEVEL", "info");
    lodge
}

/// Starts the daemon and returns how long its first answer took.
pub(crate) fn start(lodge: &mut Lodge) -> Duration {
    let socket = lodge.home().join("lodge.sock");
    let from = Instant::now();
    lodge.spawn();
    loop {
        if let Ok(stream) = UnixStream::connect(&socket)
            && answers(stream)
        {
            return from.elapsed();
        }
        assert!(from.elapsed() < PATIENCE, "the daemon did not answer:\n{}", lodge.log());
        std::thread::sleep(LOOK);
    }
}

fn answers(mut stream: UnixStream) -> bool {
    let asked = stream
        .set_read_timeout(Some(PATIENCE))
        .and_then(|()| stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"));
    let mut reply = [0; 512];
    match asked.and_then(|()| stream.read(&mut reply)) {
        Ok(count) => reply[..count].starts_with(b"HTTP/1.1 200"),
        Err(_) => false,
    }
}
