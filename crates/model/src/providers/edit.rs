//! Edits `providers.yaml` as a careful person would: changes only the affected lines and keeps comments.
//!
//! An edit of the text is used only if the result parses to exactly the expected entries. Otherwise (flow style,
//! anchors, anything unforeseen) the file is rewritten.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::file::{self, FileEntry};

/// The text with `added` at the end of the list.
pub(crate) fn with_added(text: &str, entries: &[FileEntry], added: FileEntry) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    let indent = entries.last().and_then(|last| line_at(&lines, last)).map_or("  ", indent_of);
    let block = block(&added, indent);
    let wanted: Vec<FileEntry> = entries.iter().cloned().chain([added]).collect();
    if entries.is_empty() {
        let head = lines.iter().position(|line| matches!(line.trim_end(), "providers:" | "providers: []"));
        match head {
            Some(place) => lines.splice(place..=place, ["providers:", block.trim_end_matches('\n')]),
            None => lines.splice(lines.len().., ["providers:", block.trim_end_matches('\n')]),
        };
    } else {
        lines.push(block.trim_end_matches('\n'));
    }
    verified(&lines, &wanted)
}

/// The text without the entry at `place`.
pub(crate) fn with_removed(text: &str, entries: &[FileEntry], place: usize) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    let wanted: Vec<FileEntry> = entries
        .iter()
        .enumerate()
        .filter(|(other, _)| *other != place)
        .map(|(_, entry)| entry.clone())
        .collect();
    let start = index_of(&entries[place]).min(lines.len());
    let next = entries.get(place + 1).map_or(lines.len(), index_of).clamp(start, lines.len());
    // Comments right above the next entry belong to that one.
    let kept = lines[start..next].iter().rev().take_while(|line| is_comment_or_blank(line)).count();
    lines.drain(start..next - kept);
    verified(&lines, &wanted)
}

/// Puts `text` in the place of the file at `path`: whole or not at all, and for its owner only.
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<()> {
    // A link is followed, so that a file kept elsewhere stays there.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".new-{}", std::process::id()));
    let temporary = directory.join(temporary);
    let written = write_new(&temporary, text).and_then(|()| fs::rename(&temporary, &path));
    if written.is_err() {
        // The failure that counts is the one above; a leftover is removed by the next attempt.
        let _ = fs::remove_file(&temporary);
    }
    written?;
    File::open(directory)?.sync_all()
}

fn write_new(path: &Path, text: &str) -> io::Result<()> {
    match fs::remove_file(path) {
        Ok(()) => {}
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
        Err(cause) => return Err(cause),
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn verified(lines: &[&str], wanted: &[FileEntry]) -> String {
    let mut text = lines.join("\n");
    text.push('\n');
    match file::parse(&text) {
        Ok(read) if read == wanted => text,
        Ok(_) | Err(_) => {
            wanted.iter().fold("providers:\n".to_owned(), |text, entry| text + &block(entry, "  "))
        }
    }
}

/// One entry of a block list, every value quoted.
fn block(entry: &FileEntry, indent: &str) -> String {
    let mut text = format!("{indent}- name: {}\n{indent}  kind: {}\n", quoted(&entry.name), entry.kind);
    let mut line = |key: &str, value: String| text.push_str(&format!("{indent}  {key}: {value}\n"));
    if let Some(url) = &entry.base_url {
        line("base-url", quoted(url));
    }
    if let Some(key) = &entry.api_key {
        line("api-key", quoted(key.expose()));
    }
    if !entry.models.is_empty() {
        let models: Vec<String> = entry.models.iter().map(|model| quoted(model)).collect();
        line("models", format!("[{}]", models.join(", ")));
    }
    for (key, limit) in [
        ("connect-timeout", entry.settings.timeouts.connect),
        ("first-byte-timeout", entry.settings.timeouts.first_byte),
        ("idle-timeout", entry.settings.timeouts.idle),
    ] {
        if let Some(limit) = limit {
            line(key, format!("{}ms", limit.as_millis()));
        }
    }
    if let Some(time) = entry.settings.retry_for {
        line("retry-for", time.to_string());
    }
    if !entry.settings.prices.is_empty() {
        let prices = entry.settings.prices.iter().map(|(model, price)| {
            let [input, output, cached, write] =
                [price.input, price.output, price.cached, price.cache_write].map(dollars);
            let model = quoted(model);
            format!("{model}: {{input: {input}, output: {output}, cached: {cached}, cache-write: {write}}}")
        });
        line("prices", format!("{{{}}}", prices.collect::<Vec<_>>().join(", ")));
    }
    if !entry.settings.context_windows.is_empty() {
        let windows = entry.settings.context_windows.iter();
        let windows = windows.map(|(model, tokens)| format!("{}: {tokens}", quoted(model)));
        line("context-windows", format!("{{{}}}", windows.collect::<Vec<_>>().join(", ")));
    }
    text
}

/// Of a million tokens, with all six digits.
fn dollars(micro_usd: u64) -> String {
    format!("{}.{:06}", micro_usd / 1_000_000, micro_usd % 1_000_000)
}

/// A JSON string is a YAML string.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn index_of(entry: &FileEntry) -> usize {
    usize::try_from(entry.line).unwrap_or(usize::MAX).saturating_sub(1)
}

fn line_at<'a>(lines: &[&'a str], entry: &FileEntry) -> Option<&'a str> {
    lines.get(index_of(entry)).copied()
}

fn indent_of(line: &str) -> &str {
    &line[..line.len() - line.trim_start().len()]
}

fn is_comment_or_blank(line: &str) -> bool {
    let line = line.trim_start();
    line.is_empty() || line.starts_with('#')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::ProviderKind;
    use crate::secret::Secret;

    const FILE: &str = "# mine\nproviders:\n- name: a   # first\n  kind: openai\n  api-key: ${A_KEY}\n\n# second\n- name: b\n  kind: script\n# end\n";

    fn new(name: &str) -> FileEntry {
        let api_key = Some(Secret::new("${X}"));
        FileEntry { name: name.to_owned(), api_key, ..FileEntry::blank(ProviderKind::Openai) }
    }

    #[test]
    fn adding_touches_nothing_else() {
        let text = with_added(FILE, &file::parse(FILE).unwrap(), new("c"));
        let block = "- name: \"c\"\n  kind: openai\n  api-key: \"${X}\"\n";
        assert_eq!(text, format!("{FILE}{block}"));
    }

    #[test]
    fn removing_takes_the_entry_and_leaves_the_comments_of_others() {
        let text = with_removed(FILE, &file::parse(FILE).unwrap(), 0);
        assert_eq!(text, "# mine\nproviders:\n\n# second\n- name: b\n  kind: script\n# end\n");
        let text = with_removed(&text, &file::parse(&text).unwrap(), 0);
        assert_eq!(text, "# mine\nproviders:\n\n# second\n# end\n");
        let text = with_added(&text, &[], new("c"));
        assert!(text.starts_with("# mine\nproviders:\n  - name: \"c\"\n"), "{text}");
    }

    #[test]
    fn a_file_that_cannot_be_edited_by_lines_is_written_again() {
        let flow = "providers: [{name: a, kind: openai, api-key: \"k: 1\"}, {name: b, kind: script}]\n";
        let entries = file::parse(flow).unwrap();
        let text = with_added(flow, &entries, new("c"));
        assert_eq!(file::parse(&text).unwrap(), [entries.clone(), vec![new("c")]].concat());
        let text = with_removed(flow, &entries, 1);
        assert_eq!(file::parse(&text).unwrap(), entries[..1]);
        let settings = "providers: [{name: a, kind: openai, idle-timeout: 90s, connect-timeout: 50ms, retry-for: 90m, prices: \
            {m: {input: 1.25, output: 10}, \"v/n\": {input: 0, output: 0.000001, cached: 0.5}}, context-windows: {m: 9}}]\n";
        let entries = file::parse(settings).unwrap();
        let text = with_added(settings, &entries, new("c"));
        assert_eq!(file::parse(&text).unwrap(), [entries, vec![new("c")]].concat(), "{text}");
        for empty in ["", "# only words\n", "providers: []\n", "providers:\n", "providers:   # none\n"] {
            let text = with_added(empty, &[], new("c"));
            assert_eq!(file::parse(&text).unwrap(), [new("c")], "{empty:?} became {text:?}");
        }
    }
}
