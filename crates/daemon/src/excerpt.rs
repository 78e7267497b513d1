//! Output that is too long for a model, shortened.

/// The first and the last bytes of a stream that has `seen`; `whole` says where the rest is, and may be empty.
pub fn both_ends(head: &[u8], tail: &[u8], seen: u64, whole: &str) -> String {
    let left_out = seen.saturating_sub((head.len() + tail.len()) as u64);
    if left_out == 0 {
        // As one: a letter may stand on both sides.
        return String::from_utf8_lossy(&[head, tail].concat()).into_owned();
    }
    let (head, tail) = (String::from_utf8_lossy(head), String::from_utf8_lossy(tail));
    format!("{head}\n[… {left_out} bytes left out{whole} …]\n{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_reported_in_its_place_and_a_letter_is_not_cut_where_nothing_is() {
        let umlaut = "ü".as_bytes();
        assert_eq!(both_ends(&umlaut[..1], &umlaut[1..], 2, "; elsewhere"), "ü");
        assert_eq!(both_ends(b"a", b"z", 26, ""), "a\n[… 24 bytes left out …]\nz");
        assert_eq!(both_ends(b"a", b"z", 26, "; elsewhere"), "a\n[… 24 bytes left out; elsewhere …]\nz");
        // Nothing was kept.
        assert_eq!(both_ends(b"", b"", 3, ""), "\n[… 3 bytes left out …]\n");
    }
}
