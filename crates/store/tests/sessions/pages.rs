//! Listings and exports, in pages.

use super::*;

#[test]
fn sessions_are_listed_by_when_they_were_used_last_and_paged_without_loss() {
    let mut world = SessionsWorld::new();
    let ids: Vec<SessionId> = (0..7).map(|n| world.session(&format!("s{n}"))).collect();
    world.turn(&ids[2], "q", "a");
    world.turn(&ids[5], "q", "a");
    // A turn in flight counts from when it was accepted.
    let mut live = world.turn_writes(&ids[3], "q", "a");
    live.truncate(2);
    if let Write::Turn(TurnWrite::New(row)) = &mut live[0] {
        (row.state, row.ended_at) = (TurnState::Running, None);
    }
    world.commit(&live);
    let (mut seen, mut before) = (Vec::new(), None);
    loop {
        let page = world.store.reader.here(|snapshot| snapshot.sessions(None, before.as_ref(), 3)).unwrap();
        let Some(last) = page.last() else { break };
        before = Some(SessionCursor { last_active: last.last_active, id: last.row.id.to_string() });
        seen.extend(page.into_iter().map(|found| found.row.id.to_string()));
    }
    assert_eq!(seen, ["s3", "s5", "s2", "s6", "s4", "s1", "s0"]);
    let of_agent =
        world.store.reader.here(|snapshot| snapshot.sessions(Some(&world.agent), None, 10)).unwrap();
    assert_eq!(of_agent.len(), 7);
    assert_eq!((of_agent[0].turns, of_agent[0].agent_name.as_str()), (1, "one"));
    assert!(of_agent[0].live.running.is_some() && of_agent[1].live.running.is_none());
    let nobody = AgentId::new(&mut world.ids, Timestamp::from_ms(1));
    assert!(
        world.store.reader.here(|snapshot| snapshot.sessions(Some(&nobody), None, 10)).unwrap().is_empty()
    );
}

#[test]
fn an_export_tells_everything_in_pages_and_what_became_of_each_turn() {
    let mut world = SessionsWorld::new();
    let s = world.session("s");
    for n in 1..=3 {
        world.turn(&s, &format!("q{n}"), &"y".repeat(100));
    }
    world.rewind(&s, 2);
    for (messages_max, bytes_max) in [(1, usize::MAX), (2, usize::MAX), (100, 50), (100, usize::MAX)] {
        let (mut all, mut after) = (Vec::new(), 0);
        loop {
            let (page, more) = world
                .store
                .reader
                .here(|snapshot| snapshot.exported(&s, after, messages_max, bytes_max))
                .unwrap();
            assert!(page.len() <= messages_max as usize);
            after = page.last().map_or(after, |last| last.told.row.seq);
            all.extend(page);
            if !more {
                break;
            }
        }
        assert_eq!(all.len(), 6);
        assert_eq!(all.iter().filter(|one| one.told.active).count(), 4);
        let begun: Vec<bool> = all.iter().map(|one| one.turn.is_some()).collect();
        assert_eq!(begun, [true, false, true, false, true, false]);
        assert_eq!(all[0].turn.as_ref().unwrap().row.usage.output_tokens, 7);
    }
}

#[test]
fn a_page_ends_after_some_megabytes_and_the_next_goes_on_behind_it() {
    let mut world = SessionsWorld::new();
    let s = world.session("s");
    let long = "x".repeat(1 << 20);
    for _ in 0..6 {
        world.turn(&s, &long, &long);
    }
    let (mut before, mut seqs) = (None, Vec::new());
    loop {
        let (page, more) =
            world.store.reader.here(|snapshot| snapshot.messages(&s, TurnScope::Path, before, 500)).unwrap();
        assert!(page.len() <= 4, "four megabytes at most: {}", page.len());
        seqs.splice(0..0, page.iter().map(|told| told.row.seq));
        before = page.first().map(|first| first.row.seq);
        if !more || before == Some(1) {
            break;
        }
    }
    assert_eq!(seqs, (1..=12).collect::<Vec<u64>>());
    let (mut after, mut numbers) = (TurnCursor::default(), Vec::new());
    loop {
        let (page, more) =
            world.store.reader.here(|snapshot| snapshot.turns(&s, TurnScope::Path, &after, 500)).unwrap();
        assert!(page.len() <= 4, "four megabytes at most: {}", page.len());
        numbers.extend(page.iter().map(|turn| turn.row.number));
        let Some(last) = page.last().filter(|_| more) else { break };
        after = TurnCursor { number: last.row.number, id: last.row.id.to_string() };
    }
    assert_eq!(numbers, (1..=6).collect::<Vec<u32>>());
}
