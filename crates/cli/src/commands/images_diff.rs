//! `image diff`: what changed, permissions and tools first.

use lodge_proto::{DiffImages, ImageChange, ImageDiffParams};

use super::CommandContext;
use super::images::short;
use crate::failure::CommandFailure;
use crate::line_diff::{DiffLine, line_diff};
use crate::render::one_line;
use crate::words::{ChangeMark, Words, put};

/// A value that is longer than this is shown in lines of its own.
const INLINE_CHARS_MAX: usize = 100;

pub(super) async fn diff(context: &CommandContext, from: String, to: String) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let params = ImageDiffParams { from, to };
    let diff = daemon.call::<DiffImages>(params).await?;
    if context.words.json {
        return context.words.json(&diff);
    }
    if diff.changes.is_empty() {
        let same = diff.from == diff.to;
        context.words.print_note(if same {
            "it is the same image"
        } else {
            "an agent of either is the same"
        });
        return Ok(());
    }
    context.words.print_note(&format!("{} → {}", short(&diff.from), short(&diff.to)));
    put(&text(&context.words, &diff.changes))
}

/// Sections in the order in which they come, each with its name once.
fn text(words: &Words, changes: &[ImageChange]) -> String {
    let mut text = String::new();
    let mut section = None;
    for change in changes {
        if section != Some(&change.section) {
            let apart = if section.is_some() { "\n" } else { "" };
            text.push_str(&format!("{apart}{}\n", words.bold(&one_line(&change.section))));
            section = Some(&change.section);
        }
        text.push_str(&change_text(words, change));
    }
    text
}

fn change_text(words: &Words, change: &ImageChange) -> String {
    // What there is one of is named by its section.
    let key = if change.key == change.section { String::new() } else { one_line(&change.key) };
    let named = |mark: ChangeMark, value: &str| {
        let value = one_line(value);
        let space = if key.is_empty() || value.is_empty() { "" } else { " " };
        format!("  {}\n", words.marked(mark, &format!("{key}{space}{value}")))
    };
    let shown = |value: &Option<String>| value.as_deref().map(without_tail);
    let (before, after) = (shown(&change.before), shown(&change.after));
    match (before.as_deref(), after.as_deref()) {
        (None, None) => named(ChangeMark::Changed, ""),
        (Some(before), Some(after)) if is_long(before) || is_long(after) => {
            format!("{}{}", named(ChangeMark::Changed, ""), lines(words, before, after))
        }
        (Some(before), Some(after)) => named(ChangeMark::Changed, &format!("{before} → {after}")),
        (Some(before), None) if is_long(before) => {
            format!("{}{}", named(ChangeMark::Gone, ""), lines(words, before, ""))
        }
        (Some(before), None) => named(ChangeMark::Gone, before),
        (None, Some(after)) if is_long(after) => {
            format!("{}{}", named(ChangeMark::New, ""), lines(words, "", after))
        }
        (None, Some(after)) => named(ChangeMark::New, after),
    }
}

/// Of a value that is a digest as much as a listing shows; `--json` has it whole.
fn without_tail(value: &str) -> String {
    const DIGEST_LETTERS: usize = "sha256:".len() + 64;
    let is_digest = value.starts_with("sha256:") && value.len() == DIGEST_LETTERS;
    if is_digest { short(value) } else { value.to_owned() }
}

fn is_long(value: &str) -> bool {
    value.contains('\n') || value.chars().count() > INLINE_CHARS_MAX
}

fn lines(words: &Words, before: &str, after: &str) -> String {
    let line = |line: &DiffLine<'_>| match line {
        DiffLine::Same(text) => format!("      {}", one_line(text)).trim_end().to_owned(),
        DiffLine::Gone(text) => format!("    {}", words.marked(ChangeMark::Gone, &one_line(text))),
        DiffLine::New(text) => format!("    {}", words.marked(ChangeMark::New, &one_line(text))),
        DiffLine::Skipped(1) => "      (1 line is the same)".to_owned(),
        DiffLine::Skipped(count) => format!("      ({count} lines are the same)"),
    };
    line_diff(before, after).iter().map(|one| line(one) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(section: &str, key: &str, before: Option<&str>, after: Option<&str>) -> ImageChange {
        ImageChange {
            section: section.into(),
            key: key.into(),
            before: before.map(str::to_owned),
            after: after.map(str::to_owned),
        }
    }

    #[test]
    fn each_section_is_named_once_and_texts_are_reported_by_line() {
        let changes = [
            change("network", "network", Some("none"), Some("host")),
            change("bins", "rg", None, Some("rg:latest@sha256:12")),
            change("bins", "sh", Some("host:sh"), None),
            change("contexts", "SOUL", Some("be kind\nbe short\n"), Some("be kind\nbe long\n")),
            change("contexts", "NEW", None, Some("one\ntwo")),
        ];
        // Not a terminal: no colour.
        assert_eq!(
            text(&Words::new(false, false), &changes),
            "network\n  ~ none → host\n\nbins\n  + rg rg:latest@sha256:12\n  - sh host:sh\n\ncontexts\n  ~ SOUL\n      be kind\n    - be short\n    + be long\n  + NEW\n    + one\n    + two\n"
        );
    }

    #[test]
    fn a_digest_is_reported_as_in_listings() {
        let digest = format!("sha256:{}", "ab".repeat(32));
        let changes = [change("files", "plan.csv", Some(&digest), Some("gone"))];
        assert_eq!(
            text(&Words::new(false, false), &changes),
            "files\n  ~ plan.csv sha256:abababababab → gone\n"
        );
    }

    #[test]
    fn what_an_image_says_does_not_steer_a_terminal() {
        let changes = [change("labels\u{1b}", "k\n", Some("a\u{1b}[2J"), Some("b\u{9b}\nc"))];
        let text = text(&Words::new(false, false), &changes);
        assert!(!text.contains(|letter: char| letter.is_control() && letter != '\n'), "{text:?}");
    }
}
