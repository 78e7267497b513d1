//! `session search` and `session export`.

use lodge_proto::{
    ExportSession, PAGE_MAX, SearchSessions, SessionExportParams, SessionHit, SessionSearchParams,
};

use super::CommandContext;
use crate::args::SearchArgs;
use crate::failure::CommandFailure;
use crate::render::{ago, now_s, one_line};
use crate::words::{Words, put};

pub(super) async fn search(context: &CommandContext, args: SearchArgs) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let (query, wanted) = (query(&args.query), args.limit as usize);
    let mut hits: Vec<SessionHit> = Vec::new();
    let mut after = None;
    loop {
        let missing = u32::try_from(wanted - hits.len()).unwrap_or(u32::MAX);
        let params = SessionSearchParams {
            query: query.clone(),
            agent: args.agent.clone(),
            session: args.session.clone(),
            after,
            limit: Some(missing.min(PAGE_MAX)),
        };
        let page = daemon.call::<SearchSessions>(params).await?;
        hits.extend(page.hits);
        after = page.next;
        if after.is_none() || hits.len() >= wanted {
            break;
        }
    }
    if context.words.json {
        return context.words.json(&hits);
    }
    if hits.is_empty() {
        context.words.print_note("nothing was found");
    } else if after.is_some() {
        context.words.print_dimmed_note(&format!("there is more; `-n` shows more than {wanted}"));
    }
    let now = now_s();
    put(&hits.iter().map(|hit| line(hit, now, &context.words)).collect::<String>())
}

/// Words that a shell took apart: one with a space in it was a phrase.
fn query(words: &[String]) -> String {
    match words {
        [one] => one.clone(),
        many => {
            let quoted = |word: &String| {
                if word.contains(' ') && !word.contains('"') { format!("\"{word}\"") } else { word.clone() }
            };
            many.iter().map(quoted).collect::<Vec<_>>().join(" ")
        }
    }
}

fn line(hit: &SessionHit, now_s: i64, words: &Words) -> String {
    let branch = if hit.active { "" } else { " (branch)" };
    let head = format!("{}  turn {}{branch}  {}  {}", hit.session, hit.number, hit.role, ago(&hit.at, now_s));
    format!("{head}\n  {}\n", marked(hit, words))
}

/// The snippet on one line, with what was found in bold on a terminal.
fn marked(hit: &SessionHit, words: &Words) -> String {
    let letters: Vec<char> = hit.snippet.chars().collect();
    let (mut text, mut at) = (String::new(), 0);
    for mark in &hit.marks {
        let (start, end) = ((mark.start as usize).max(at), (mark.end as usize).min(letters.len()));
        if start >= end {
            continue;
        }
        text.push_str(&one_line(&letters[at..start].iter().collect::<String>()));
        let found = one_line(&letters[start..end].iter().collect::<String>());
        text.push_str(&words.bold(&found));
        at = end;
    }
    text.push_str(&one_line(&letters[at.min(letters.len())..].iter().collect::<String>()));
    text
}

/// Page by page, so that neither side has a long conversation in memory.
pub(super) async fn export(context: &CommandContext, session: String) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let mut after = None;
    loop {
        let params = SessionExportParams { session: session.clone(), after, limit: None };
        let page = daemon.call::<ExportSession>(params).await?;
        for line in &page.lines {
            context.words.json_line(line)?;
        }
        after = page.next;
        if after.is_none() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lodge_proto::SnippetMark;

    #[test]
    fn a_query_is_what_was_typed_and_words_that_were_quoted_for_the_shell_stay_together() {
        let words = |words: &[&str]| query(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(words(&["one two"]), "one two");
        assert_eq!(words(&["one", "two"]), "one two");
        assert_eq!(words(&["one", "two three"]), "one \"two three\"");
        assert_eq!(words(&["\"a b\"", "c"]), "\"a b\" c");
    }

    #[test]
    fn a_hit_shows_where_it_is_and_marks_that_make_no_sense_harm_nothing() {
        let mut hit = SessionHit {
            session: "s".into(),
            agent: "agt_1".into(),
            turn: "trn_1".into(),
            number: 3,
            seq: 5,
            role: "user".into(),
            active: false,
            at: "2025-03-01T00:00:00.000Z".into(),
            snippet: "…größe\nof it".into(),
            marks: vec![SnippetMark { start: 1, end: 6 }],
        };
        let words = Words::new(false, false);
        let text = line(&hit, 1_740_787_260, &words);
        assert!(text.starts_with("s  turn 3 (branch)  user  "), "{text}");
        assert!(text.ends_with("\n  …größe of it\n"), "{text}");
        hit.marks = vec![SnippetMark { start: 9, end: 2 }, SnippetMark { start: 0, end: 99 }];
        assert!(line(&hit, 0, &words).ends_with("…größe of it\n"));
    }
}
