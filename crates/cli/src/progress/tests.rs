use super::*;

const MIB: u64 = 1 << 20;

fn part(title: &str, done_bytes: u64, total_bytes: u64) -> ProgressPart {
    ProgressPart { digest: String::new(), title: title.to_owned(), done_bytes, total_bytes, there: false }
}

fn there(title: &str, bytes: u64) -> ProgressPart {
    ProgressPart { there: true, ..part(title, bytes, bytes) }
}

fn room(columns: usize) -> TerminalSize {
    TerminalSize { columns, rows: 24 }
}

#[test]
fn parts_that_run_have_a_bar_and_the_others_are_counted() {
    let parts = [
        part("rg linux/amd64", 3 * MIB, 12 * MIB),
        part("soul.md", 100, 100),
        part("later", 0, 4 * MIB),
        there("Agentfile", 50),
    ];
    assert_eq!(
        frame("pulling otter", &parts, Some(2 * MIB), room(80)),
        [
            "pulling otter",
            "  rg linux/amd64 █████░░░░░░░░░░░░░░░░░ 3.0 of 12.0 MiB",
            "  1 of 3 parts   ████░░░░░░░░░░░░░░░░░░ 3.0 of 16.0 MiB, 2.0 MiB/s, 7 s left",
        ]
    );
}

#[test]
fn no_line_is_as_wide_as_the_terminal_and_no_title_steers_it() {
    let title = "a\u{1b}[2Jvery long title of a layer\nthat \u{9b}goes on";
    for columns in 1..120 {
        let parts = [part(title, 5, 900), part("日本語", 1, 2)];
        for line in frame("pulling x", &parts, Some(7), room(columns)) {
            assert!(line.width() < columns.max(2), "{columns}: {line}");
            assert!(!line.contains(char::is_control), "{line:?}");
        }
    }
}

#[test]
fn many_parts_and_a_low_terminal_get_few_lines() {
    let parts: Vec<ProgressPart> = (0..40).map(|n| part(&format!("layer {n}"), 1, 2)).collect();
    let frame_of = |rows| frame("pulling x", &parts, None, TerminalSize { columns: 80, rows });
    assert_eq!(frame_of(24).len(), LINES_MAX + 3);
    assert_eq!(frame_of(24)[LINES_MAX + 1], "  and 34 more");
    assert!((1..24).all(|rows| frame_of(rows).len() < rows.max(4)));
    assert!(frame_of(24).last().is_some_and(|line| line.starts_with("  0 of 40 parts ")));
}

#[test]
fn one_thing_has_a_bar_and_one_of_unknown_size_has_none() {
    let one = frame("importing a.tar", &[part("", MIB, 2 * MIB)], None, room(60));
    assert_eq!(one, ["importing a.tar", "  █████████████░░░░░░░░░░░░░ 1.0 of 2.0 MiB"]);
    let unknown = frame("exporting", &[part("", 5 * MIB, 0)], Some(MIB), room(60));
    assert_eq!(unknown, ["exporting", "  5.0 MiB, 1.0 MiB/s"]);
}

#[test]
fn how_long_it_takes_is_reported_when_enough_came_to_tell_it_from() {
    let told = |done| total_text(&[part("a", done, 1000 * MIB)], Some(MIB));
    assert_eq!(told(MIB), "1.0 of 1000.0 MiB, 1.0 MiB/s");
    assert_eq!(told(400 * MIB), "400.0 of 1000.0 MiB, 1.0 MiB/s, 10 min left");
}

#[test]
fn a_bar_is_full_only_at_the_end() {
    assert_eq!((bar(0, 10, 4), bar(9, 10, 4), bar(10, 10, 4)), ("░░░░".into(), "███░".into(), "████".into()));
    // Who sends more than was announced, or nothing, breaks nothing.
    assert_eq!(
        (bar(99, 10, 2), bar(0, 0, 2), bar(u64::MAX, u64::MAX, 2)),
        ("██".into(), "░░".into(), "██".into())
    );
    assert_eq!(amount(u64::MAX, 1), "1 of 1 B");
}

#[test]
fn what_was_there_is_not_waited_for() {
    assert_eq!(total_text(&[there("a", 5), there("b", 7)], Some(1)), "2 already there");
    assert_eq!(total_text(&[], None), "checking what to transfer");
    assert_eq!(total_text(&[part("a", 2048, 4096)], Some(1024)), "2.0 of 4.0 KiB, 1.0 KiB/s, 3 s left");
    assert_eq!(total_text(&[part("a", 2048, 4096)], Some(0)), "2.0 of 4.0 KiB, 0 B/s");
}

#[test]
fn the_rate_is_that_of_the_last_seconds() {
    let begin = Instant::now();
    let at = |ms| begin + Duration::from_millis(ms);
    let mut rate = TransferRate::default();
    assert_eq!((rate.look(at(0), 0), rate.look(at(100), 500)), (None, None));
    assert_eq!(rate.look(at(1_000), 2_000), Some(2_000));
    // The transfer stalls: the rate falls, and is none in the end.
    assert_eq!(rate.look(at(3_900), 2_000), Some(394));
    assert_eq!(rate.look(at(8_000), 2_000), Some(0));
    for n in 0..1_000 {
        rate.look(at(8_000 + n), 2_000);
    }
    assert!(rate.looks.len() <= RATE_LOOKS_MAX);
}
