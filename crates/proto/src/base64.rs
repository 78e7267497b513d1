//! Bytes that are no text, in JSON: base64 of RFC 4648 with `=` at the end.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

pub fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// None for what `encode` cannot have written.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

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
