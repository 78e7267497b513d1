//! Bytes as hexadecimal digits.

pub fn encode(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// None for anything but two digits a byte.
pub fn decode<const LEN: usize>(text: &str) -> Option<[u8; LEN]> {
    let digits = text.as_bytes();
    if digits.len() != LEN * 2 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut bytes = [0; LEN];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}
