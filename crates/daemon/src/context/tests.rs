use lodge_core::Timestamp;
use lodge_core::record::CallRecord;

use super::*;

fn row(number: u32, role: Role, body: MessageBody) -> MessageRow {
    MessageRow {
        session: "s".parse().unwrap(),
        seq: 0,
        turn: "trn_0000000000000000".parse().unwrap(),
        number,
        step: 0,
        role,
        at: Timestamp::from_ms(0),
        body,
    }
}

fn text(number: u32, role: Role, text: &str) -> MessageRow {
    row(number, role, MessageBody { text: text.to_owned(), ..MessageBody::default() })
}

fn calls(number: u32, ids: &[&str]) -> MessageRow {
    let call = |id: &&str| CallRecord { id: (*id).into(), name: "sh".into(), arguments: "{}".into() };
    let body = MessageBody { calls: ids.iter().map(call).collect(), ..MessageBody::default() };
    row(number, Role::Assistant, body)
}

fn result(number: u32, call: &str, text: &str) -> MessageRow {
    let body = MessageBody { text: text.into(), call: Some(call.to_owned()), ..MessageBody::default() };
    row(number, Role::Tool, body)
}

/// What the strictest provider asks for: a user begins and speaks last or a tool does, the two take turns, each call
/// has an id of its own and its result right behind it, and nothing is empty.
fn strict(rows: &[MessageRow]) -> Result<(), String> {
    let mut ids = HashSet::new();
    let mut rows = rows.iter().peekable();
    if rows.peek().is_none_or(|first| first.role != Role::User) {
        return Err("a user does not begin".to_owned());
    }
    let mut last = Role::Assistant;
    while let Some(row) = rows.next() {
        let fits = match (last, row.role) {
            (Role::Assistant, Role::User) | (Role::User | Role::Tool, Role::Assistant) => true,
            (Role::Assistant | Role::Tool | Role::User, _) => false,
        };
        if !fits {
            return Err(format!("{:?} after {last:?}", row.role));
        }
        if row.body.calls.is_empty() && row.body.text.trim().is_empty() {
            return Err(format!("an empty message: {row:?}"));
        }
        last = row.role;
        for call in &row.body.calls {
            let result = rows.next();
            let paired = result.is_some_and(|result| {
                result.role == Role::Tool
                    && result.body.call.as_ref() == Some(&call.id)
                    && !result.body.text.is_empty()
            });
            if !paired || !ids.insert(&call.id) {
                return Err(format!("call {} has {result:?}", call.id));
            }
            last = Role::Tool;
        }
    }
    if last == Role::Assistant { Err("nobody asks".to_owned()) } else { Ok(()) }
}

fn words(rows: &[MessageRow]) -> Vec<&str> {
    rows.iter().map(|row| row.body.text.as_str()).collect()
}

#[test]
fn a_turn_without_an_answer_is_reported_as_such() {
    let rows = vec![text(1, Role::User, "a"), text(2, Role::User, "b")];
    assert_eq!(words(&readable(rows, 2)), ["a", NO_ANSWER, "b"]);
    let rows =
        vec![text(1, Role::User, "a"), calls(1, &["c"]), result(1, "c", "r"), text(2, Role::User, "b")];
    assert_eq!(words(&readable(rows, 2)), ["a", "", "r", NO_ANSWER, "b"]);
}

#[test]
fn the_turn_that_asks_is_not_ended() {
    let rows = vec![text(1, Role::User, "a"), calls(1, &["c"]), result(1, "c", "r")];
    assert_eq!(words(&readable(rows.clone(), 1)), ["a", "", "r"]);
    assert_eq!(words(&readable(rows, 2)), ["a", "", "r", NO_ANSWER], "for a summary it is over");
}

#[test]
fn half_an_answer_says_that_it_is_half() {
    let half = MessageBody { text: "yes, but ".into(), partial: true, ..MessageBody::default() };
    let rows = vec![text(1, Role::User, "a"), row(1, Role::Assistant, half), text(2, Role::User, "b")];
    assert_eq!(words(&readable(rows, 2))[1], format!("yes, but\n\n{CUT_SHORT}"));
}

#[test]
fn results_stand_in_the_order_of_their_calls_and_missing_ones_are_reported() {
    let rows = vec![
        text(1, Role::User, "a"),
        calls(1, &["x", "y", "z"]),
        result(1, "z", "3"),
        result(1, "x", "1"),
        result(1, "stray", "?"),
    ];
    let read = readable(rows, 1);
    assert_eq!(words(&read)[2..], ["1", NO_RESULT, "3"]);
    assert!(read[3].body.failed && !read[2].body.failed);
    assert_eq!(strict(&read), Ok(()));
}

#[test]
fn ids_that_models_use_again_become_each_their_own() {
    let rows = vec![
        text(1, Role::User, "a"),
        calls(1, &["c", "c_2"]),
        result(1, "c", "1"),
        result(1, "c_2", "2"),
        calls(1, &["c"]),
        result(1, "c", "3"),
    ];
    let read = readable(rows, 1);
    let ids: Vec<&str> = read.iter().filter_map(|row| row.body.call.as_deref()).collect();
    assert_eq!(ids, ["c", "c_2", "c_3"]);
    assert_eq!(words(&read)[5], "3");
}

#[test]
fn what_is_read_for_a_summary_has_a_bound_and_begins_with_a_whole_turn() {
    let large = "x".repeat(400 * 1024);
    let rows: Vec<MessageRow> = (1..=4)
        .flat_map(|number| [text(number, Role::User, "q"), text(number, Role::Assistant, &large)])
        .collect();
    let read = summed_up(rows.clone());
    assert_eq!(read.iter().map(|row| row.number).collect::<Vec<_>>(), [3, 3, 4, 4]);
    assert_eq!(summed_up(rows[..4].to_vec()).len(), 4, "what fits is read whole");
    let one = vec![text(1, Role::User, &large.repeat(4)), text(1, Role::Assistant, "a")];
    assert_eq!(summed_up(one).len(), 2, "the newest turn is read, whatever its size");
}

/// A pseudo-random number below a bound.
fn below(state: &mut u64, bound: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % bound
}

/// A turn as any end may have left it: without an answer, cut in its calls, interrupted, empty.
fn any_turn(state: &mut u64, number: u32) -> Vec<MessageRow> {
    let mut rows = vec![text(number, Role::User, "question")];
    for _ in 0..below(state, 4) {
        let ids: Vec<String> = (0..below(state, 4)).map(|place| format!("c{place}")).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        if ids.is_empty() {
            break;
        }
        rows.push(calls(number, &ids));
        for id in ids.iter().rev() {
            match below(state, 6) {
                0 => {}
                1 => rows.push(result(number, id, "")),
                _ => rows.push(result(number, id, "out")),
            }
        }
    }
    match below(state, 5) {
        0 => {}
        1 => rows.push(text(number, Role::Assistant, "")),
        2 => {
            let body = MessageBody { text: "half".into(), partial: true, ..MessageBody::default() };
            rows.push(row(number, Role::Assistant, body));
        }
        3 => {
            // An answer that did not match, and the note to the model about it.
            rows.push(text(number, Role::Assistant, "no json"));
            rows.push(text(number, Role::User, "it does not fit"));
            rows.push(text(number, Role::Assistant, "{}"));
        }
        _ => rows.push(text(number, Role::Assistant, "answer")),
    }
    rows
}

#[test]
fn after_any_end_of_earlier_turns_the_strictest_provider_accepts_the_request() {
    for seed in 0..2_000 {
        let mut state = seed;
        let turns = 1 + u32::try_from(below(&mut state, 8)).unwrap();
        let mut rows: Vec<MessageRow> = Vec::new();
        let mut before: Vec<MessageRow> = Vec::new();
        for number in 1..=turns {
            rows.push(text(number, Role::User, "question"));
            let summarized = below(&mut state, 2) == 0;
            let asked = readable(rows.clone(), number);
            let asked = if summarized { after_summary("long ago", asked) } else { asked };
            assert_eq!(strict(&asked), Ok(()), "seed {seed}: {asked:#?}");
            if !summarized {
                assert_eq!(
                    asked[..before.len()],
                    before,
                    "seed {seed}: a request begins with the one before"
                );
                before = asked;
            }
            let summary = asked_for_summary(readable(rows.clone(), number + 1), Strategy::Handoff);
            assert_eq!(strict(&summary), Ok(()), "seed {seed}: {summary:#?}");
            rows.pop();
            rows.extend(any_turn(&mut state, number));
        }
    }
}

#[test]
fn a_note_stands_before_what_the_user_said_and_is_distinguished_from_it() {
    let body =
        MessageBody { text: "go on".into(), note: Some("job_1 is done".into()), ..MessageBody::default() };
    let noted = row(2, Role::User, body);
    let weight = noted.body.weight();
    let rows = vec![text(1, Role::User, "a"), text(1, Role::Assistant, "b"), noted];
    let read = readable(rows, 2);
    assert_eq!(
        words(&read),
        ["a", "b", "[A note of the system, not from the user.]\njob_1 is done\n\ngo on"]
    );
    strict(&read).unwrap();
    assert!(
        weight > text(2, Role::User, "go on").body.weight() + 10,
        "a note counts for what a conversation weighs"
    );
}
