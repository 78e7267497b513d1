//! The index of words: it follows the store, and pages its hits.

use super::*;

#[test]
fn words_phrases_and_beginnings_are_found_whatever_their_case() {
    let mut world = SessionsWorld::new();
    let (s, t) = (world.session("s"), world.session("t"));
    world.turn(&s, "Where is the Größe of src/main.rs?", "The quick brown fox");
    world.turn(&t, "quick question", "brown bread");
    let texts =
        |query: &str| -> Vec<String> { world.hits(query).into_iter().map(|(_, text)| text).collect() };
    assert_eq!(texts("QUICK"), ["quick question", "The quick brown fox"], "the newest first");
    assert_eq!(texts("quick brown"), ["The quick brown fox"]);
    assert_eq!(texts("\"brown fox\""), ["The quick brown fox"]);
    assert!(texts("\"fox brown\"").is_empty());
    assert_eq!(texts("bro*").len(), 2);
    assert_eq!(texts("grosse").len() + texts("größe").len() + texts("GROSSE").len(), 1);
    assert_eq!(texts("main.rs").len(), 1);
    assert!(texts("missing").is_empty());
    assert_eq!(world.hits_in("quick", Some(&s)).len(), 1);
}

#[test]
fn the_index_follows_the_store_and_can_be_deleted_at_any_time() {
    let mut world = SessionsWorld::new();
    let s = world.session("s");
    world.turn(&s, "apple", "pear");
    assert_eq!(world.hits("apple").len(), 1);
    world.turn(&s, "apple again", "plum");
    assert_eq!(world.hits("apple").len(), 2);
    for tail in ["", "-wal", "-shm"] {
        drop(std::fs::remove_file(world.dir.path().join(format!("search.db{tail}"))));
    }
    assert_eq!(world.hits("apple").len(), 2);
    // What is no database is made one.
    std::fs::write(world.index(), "this is not a database, it is a piece of text").unwrap();
    assert_eq!(world.hits("apple").len(), 2);
    // With damage in the middle, the index is created again, or its results are still true.
    let mut bytes = std::fs::read(world.index()).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..].fill(0xaa);
    std::fs::write(world.index(), &bytes).unwrap();
    world.turn(&s, "apple a third time", "");
    assert_eq!(world.hits("apple").len(), 3);
}

#[test]
fn a_deleted_session_is_not_found_and_neither_is_what_another_of_its_name_never_said() {
    let mut world = SessionsWorld::new();
    let (s, t) = (world.session("s"), world.session("t"));
    world.turn(&s, "secret", "secret");
    world.turn(&t, "secret", "other");
    assert_eq!(world.hits("secret").len(), 3);
    world.commit(&[Write::Session(SessionWrite::Deleted { id: s.clone() })]);
    assert_eq!(world.hits("secret"), [("t".to_owned(), "secret".to_owned())]);
    world.commit(&[Write::Session(SessionWrite::Deleted { id: t.clone() })]);
    world.search().forget(&t).unwrap();
    let s = world.session("s");
    world.turn(&s, "harmless", "words");
    assert!(world.hits("secret").is_empty());
    assert_eq!(world.hits("harmless").len(), 1);
}

#[test]
fn hits_are_paged_from_the_newest_to_the_oldest_and_marked() {
    let mut world = SessionsWorld::new();
    let s = world.session("s");
    for n in 0..7 {
        world.turn(&s, &format!("wörd number {n} in a text"), "");
    }
    let query = Query::parse("number").unwrap();
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let wanted =
            SearchRequest { query: &query, agent: Some(&world.agent), session: None, after, limit: 3 };
        let page = world.search().search(&world.store.reader, wanted).unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.place);
        for hit in &page {
            let found: String = hit.snippet.chars().skip(hit.marks[0].0 as usize).take(6).collect();
            assert_eq!((found.as_str(), hit.marks[0].1 - hit.marks[0].0), ("number", 6));
            assert!(hit.active);
        }
        seen.extend(page.into_iter().map(|hit| hit.message.number));
    }
    assert_eq!(seen, [7, 6, 5, 4, 3, 2, 1]);
}
