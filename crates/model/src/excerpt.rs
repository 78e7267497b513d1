//! Short, printable excerpts of untrusted text, without keys.

use crate::redact::Redactor;
use crate::secret::Secret;

const EXCERPT_CHARS_MAX: usize = 300;

/// The start of `bytes` as one printable line in which `key` reads `[secret]`.
pub(crate) fn excerpt(bytes: &[u8], key: Option<&Secret>) -> String {
    let text = String::from_utf8_lossy(bytes);
    // Replaced before shortening: half a key is still a leak.
    let clean = Redactor::new(key.map(Secret::expose)).redact(text.into_owned());
    let mut line: String =
        clean.chars().map(|c| if c.is_control() { ' ' } else { c }).take(EXCERPT_CHARS_MAX).collect();
    if clean.chars().nth(EXCERPT_CHARS_MAX).is_some() {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_on_the_cutting_edge_leaves_no_half_behind() {
        let key = Secret::new("sk-0123456789");
        let body = format!("{}{}", "x".repeat(EXCERPT_CHARS_MAX - 4), key.expose());
        let shown = excerpt(body.as_bytes(), Some(&key));
        assert!(!shown.contains("sk-"), "{shown}");
    }

    #[test]
    fn control_characters_become_spaces() {
        assert_eq!(excerpt(b"a\r\n\x1b[2Jb", None), "a   [2Jb");
    }
}
