//! The search syntax for people, without the database's own query language.

/// The longest query.
const QUERY_BYTES_MAX: usize = 1_024;
/// Words and phrases of one query.
const TERMS_MAX: usize = 32;

/// Words that all must occur, phrases, and word prefixes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    expression: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadQuery {
    #[error("the query is empty")]
    Empty,
    #[error("the query has {bytes} bytes; {QUERY_BYTES_MAX} is the most")]
    TooLong { bytes: usize },
    #[error("the query has more than {TERMS_MAX} words and phrases")]
    TooMany,
    #[error("a quotation mark is not closed")]
    Open,
    #[error("`{given}` has no letter or digit to search for")]
    Nothing { given: String },
    #[error("`{term}` has a `*` that is not at the end of a word")]
    Star { term: String },
}

impl BadQuery {
    pub fn hint(&self) -> &'static str {
        match self {
            BadQuery::Empty | BadQuery::Nothing { .. } => "write the words to look for",
            BadQuery::TooLong { .. } | BadQuery::TooMany => "look for fewer words",
            BadQuery::Open => "close it, or leave it out: words need none",
            BadQuery::Star { .. } => "put `*` only at the end of a word, to match any ending",
        }
    }
}

impl Query {
    pub fn parse(given: &str) -> Result<Query, BadQuery> {
        if given.len() > QUERY_BYTES_MAX {
            return Err(BadQuery::TooLong { bytes: given.len() });
        }
        let mut terms: Vec<String> = Vec::new();
        let mut rest = given.trim();
        while !rest.is_empty() {
            let (term, after) = match rest.strip_prefix('"') {
                Some(inside) => phrase(inside)?,
                None => word(rest)?,
            };
            // Punctuation between words is ignored.
            terms.extend(term);
            rest = after.trim_start();
        }
        match terms.len() {
            0 if given.trim().is_empty() => Err(BadQuery::Empty),
            0 => Err(BadQuery::Nothing { given: given.trim().to_owned() }),
            count if count > TERMS_MAX => Err(BadQuery::TooMany),
            _ => Ok(Query { expression: terms.join(" ") }),
        }
    }

    /// In the database's language: strings, of which all must occur.
    pub(crate) fn expression(&self) -> &str {
        &self.expression
    }
}

/// A phrase up to its closing mark. A `*` after it makes its last word a prefix.
fn phrase(inside: &str) -> Result<(Option<String>, &str), BadQuery> {
    let (text, after) = inside.split_once('"').ok_or(BadQuery::Open)?;
    Ok(match after.strip_prefix('*') {
        Some(after) => (string(text, "*"), after),
        None => (string(text, ""), after),
    })
}

/// A word up to the next space. A quotation mark within it begins a phrase.
fn word(rest: &str) -> Result<(Option<String>, &str), BadQuery> {
    let end = rest.find(|c: char| c.is_whitespace() || c == '"').unwrap_or(rest.len());
    let (term, after) = rest.split_at(end);
    let (text, star) = match term.strip_suffix('*') {
        Some(text) => (text, "*"),
        None => (term, ""),
    };
    match string(text, star) {
        Some(_) if text.contains('*') => Err(BadQuery::Star { term: term.to_owned() }),
        string => Ok((string, after)),
    }
}

/// A string of the database's query language. None: it contains no word, and would match nothing.
fn string(text: &str, star: &str) -> Option<String> {
    let said = text.chars().any(char::is_alphanumeric);
    said.then(|| format!("\"{}\"{star}", text.replace(['"', '\0'], " ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(given: &str, expected: Result<&str, BadQuery>) {
        let parsed = Query::parse(given);
        assert_eq!(parsed.as_ref().map(Query::expression), expected.as_ref().map(|text| *text), "{given}");
    }

    #[test]
    fn words_phrases_and_beginnings_become_strings_that_must_all_occur() {
        check("hello", Ok("\"hello\""));
        check("  two   words ", Ok("\"two\" \"words\""));
        check("\"a phrase\" word", Ok("\"a phrase\" \"word\""));
        check("begin*", Ok("\"begin\"*"));
        check("\"a phr\"* x", Ok("\"a phr\"* \"x\""));
        check("word\"a phrase\"", Ok("\"word\" \"a phrase\""));
        check("this - that", Ok("\"this\" \"that\""));
        check("src/main.rs", Ok("\"src/main.rs\""));
    }

    #[test]
    fn the_databases_own_words_are_words_like_any_other() {
        for given in ["OR", "NOT x", "a AND b", "NEAR(a b)", "text:x", "^a", "{a b}:c", "x - y1", "(a", "a)"]
        {
            if let Ok(query) = Query::parse(given) {
                assert!(query.expression().starts_with('"'), "{given}: {query:?}");
            }
        }
        check("a AND b", Ok("\"a\" \"AND\" \"b\""));
        check("text:x", Ok("\"text:x\""));
    }

    #[test]
    fn a_query_that_says_nothing_is_refused_with_the_reason() {
        check("", Err(BadQuery::Empty));
        check(" \t", Err(BadQuery::Empty));
        check("\"open", Err(BadQuery::Open));
        check("\"", Err(BadQuery::Open));
        check("!!!", Err(BadQuery::Nothing { given: "!!!".into() }));
        check("\"\"", Err(BadQuery::Nothing { given: "\"\"".into() }));
        check("* -", Err(BadQuery::Nothing { given: "* -".into() }));
        check("a*b", Err(BadQuery::Star { term: "a*b".into() }));
        check("a**", Err(BadQuery::Star { term: "a**".into() }));
        check(&"x ".repeat(33), Err(BadQuery::TooMany));
        check(&"x".repeat(1_025), Err(BadQuery::TooLong { bytes: 1_025 }));
    }
}
