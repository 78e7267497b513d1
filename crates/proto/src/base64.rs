//! Bytes that are no text, in JSON: base64 of RFC 4648 with `=` at the end.

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
/// Bytes that become four letters.
const GROUP: usize = 3;

pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(GROUP) * 4);
    for group in bytes.chunks(GROUP) {
        let at = |place: usize| u32::from(group.get(place).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for place in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= group.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

/// None for what `encode` cannot have written.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let letters = text.as_bytes();
    if !letters.len().is_multiple_of(4) {
        return None;
    }
    let mut bytes = Vec::with_capacity(letters.len() / 4 * GROUP);
    let last = letters.len().saturating_sub(4);
    for (at, group) in letters.chunks(4).enumerate() {
        let filled = match group {
            [_, _, b'=', b'='] if at * 4 == last => 2,
            [_, _, _, b'='] if at * 4 == last => 3,
            _ => 4,
        };
        let mut bits = 0_u32;
        for letter in &group[..filled] {
            bits = bits << 6 | value(*letter)?;
        }
        bits <<= 6 * (4 - filled);
        let whole = &bits.to_be_bytes()[1..];
        let (kept, rest) = whole.split_at(filled - 1);
        // Bits behind the last byte are nothing, so that each text stands for other bytes.
        if rest.iter().any(|byte| *byte != 0) {
            return None;
        }
        bytes.extend_from_slice(kept);
    }
    Some(bytes)
}

fn value(letter: u8) -> Option<u32> {
    let value = match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(u32::from(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_comes_back_as_it_was() {
        for length in 0..=300_usize {
            let bytes: Vec<u8> = (0..length).map(|at| (at * 7 + length) as u8).collect();
            assert_eq!(decode(&encode(&bytes)), Some(bytes), "{length}");
        }
    }

    #[test]
    fn the_letters_are_those_of_the_standard() {
        let check = |bytes: &str, text: &str| assert_eq!(encode(bytes.as_bytes()), text);
        check("", "");
        check("f", "Zg==");
        check("fo", "Zm8=");
        check("foobar", "Zm9vYmFy");
        assert_eq!(encode(&[0xfb, 0xff]), "+/8=");
    }

    #[test]
    fn what_is_no_base64_is_refused() {
        for text in ["Z", "Zg=", "Zg", "Zh==", "Zm9=", "Zg==Zg==", "Z===", "====", "Zm 9", "Zm-_", "é"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
