//! Questions to a name server and its answers, byte for byte.
//!
//! Owns: the part of the protocol that a stub needs. Never: sockets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Longest answer that is read.
pub(crate) const ANSWER_MAX: usize = 16 * 1024;
const HEADER_LEN: usize = 12;
const CLASS_INTERNET: u16 = 1;
const ASKS_RECURSION: u16 = 1 << 8;
const IS_ANSWER: u16 = 1 << 15;
const IS_CUT: u16 = 1 << 9;
const CODE_MASK: u16 = 0xf;
const CODE_NO_NAME: u16 = 3;
/// The two highest bits of a length that is really an offset.
const POINTER: u8 = 0xc0;

/// Which kind of address is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    V4,
    V6,
}

impl Kind {
    fn number(self) -> u16 {
        match self {
            Kind::V4 => 1,
            Kind::V6 => 28,
        }
    }
}

/// What an answer says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said {
    /// Perhaps none of this kind.
    Addresses(Vec<IpAddr>),
    NoSuchName,
    /// It did not fit: to be asked for over a stream.
    Cut,
    /// The server could not say.
    Failed,
}

/// A question. `name` is one that was checked.
pub(crate) fn question(id: u16, name: &str, kind: Kind) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_LEN + name.len() + 6);
    for word in [id, ASKS_RECURSION, 1, 0, 0, 0] {
        out.extend_from_slice(&word.to_be_bytes());
    }
    for label in name.split('.') {
        out.push(u8::try_from(label.len()).unwrap_or_default());
        out.extend_from_slice(label.as_bytes());
    }
    out.push(0);
    for word in [kind.number(), CLASS_INTERNET] {
        out.extend_from_slice(&word.to_be_bytes());
    }
    out
}

/// What `bytes` say in answer to `question`. None: they are not an answer to it.
pub(crate) fn answer(bytes: &[u8], question: &[u8], kind: Kind) -> Option<Said> {
    let header = [0, 2, 4, 6].map(|at| word(bytes, at).unwrap_or_default());
    let [id, flags, questions, answers] = header;
    let asked = question.get(HEADER_LEN..)?;
    let repeated = bytes.get(HEADER_LEN..HEADER_LEN + asked.len())?;
    let is_ours = word(question, 0) == Some(id)
        && flags & IS_ANSWER != 0
        && questions == 1
        && repeated.eq_ignore_ascii_case(asked);
    if !is_ours {
        return None;
    }
    if flags & IS_CUT != 0 {
        return Some(Said::Cut);
    }
    match flags & CODE_MASK {
        0 => {}
        CODE_NO_NAME => return Some(Said::NoSuchName),
        1.. => return Some(Said::Failed),
    }
    let mut found = Vec::new();
    let mut at = HEADER_LEN + asked.len();
    for _ in 0..answers {
        at = after_name(bytes, at)?;
        let (record, class, len) =
            (word(bytes, at)?, word(bytes, at + 2)?, usize::from(word(bytes, at + 8)?));
        let data = bytes.get(at + 10..at + 10 + len)?;
        if (record, class) == (kind.number(), CLASS_INTERNET) {
            found.push(address(data, kind)?);
        }
        at += 10 + len;
    }
    Some(Said::Addresses(found))
}

fn address(data: &[u8], kind: Kind) -> Option<IpAddr> {
    match kind {
        Kind::V4 => data.try_into().ok().map(|octets: [u8; 4]| IpAddr::V4(Ipv4Addr::from(octets))),
        Kind::V6 => data.try_into().ok().map(|octets: [u8; 16]| IpAddr::V6(Ipv6Addr::from(octets))),
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    let pair = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes([pair[0], pair[1]]))
}

/// The place behind a name. Where a pointer leads does not matter here, so none is followed.
fn after_name(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        let len = *bytes.get(at)?;
        match len {
            0 => return Some(at + 1),
            POINTER.. => return Some(at + 2),
            1..POINTER => at += 1 + usize::from(len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer with these records, as (kind, data), each for the name that was asked.
    fn answered(question: &[u8], flags: u16, records: &[(u16, &[u8])]) -> Vec<u8> {
        let mut out = question.to_vec();
        out[2..4].copy_from_slice(&(IS_ANSWER | flags).to_be_bytes());
        out[6..8].copy_from_slice(&(records.len() as u16).to_be_bytes());
        for (kind, data) in records {
            out.extend_from_slice(&[POINTER, 12]);
            out.extend_from_slice(&kind.to_be_bytes());
            out.extend_from_slice(&[0, 1, 0, 0, 0, 60]);
            out.extend_from_slice(&(data.len() as u16).to_be_bytes());
            out.extend_from_slice(data);
        }
        out
    }

    #[test]
    fn addresses_of_the_kind_that_was_asked_for_are_found_behind_other_records() {
        let asked = question(7, "www.example.com", Kind::V4);
        let bytes = answered(&asked, 0, &[(5, b"\x01a\xc0\x10"), (1, &[192, 0, 2, 7]), (28, &[0; 16])]);
        let found = vec![IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7))];
        assert_eq!(answer(&bytes, &asked, Kind::V4), Some(Said::Addresses(found)));
        let shouted = bytes.to_ascii_uppercase();
        assert!(answer(&shouted, &asked, Kind::V4).is_some());
        for (flags, said) in [(IS_CUT, Said::Cut), (3, Said::NoSuchName), (2, Said::Failed)] {
            assert_eq!(answer(&answered(&asked, flags, &[]), &asked, Kind::V4), Some(said));
        }
    }

    #[test]
    fn an_answer_to_another_question_is_none_and_a_broken_one_says_nothing() {
        let asked = question(7, "www.example.com", Kind::V4);
        let bytes = answered(&asked, 0, &[(1, &[192, 0, 2, 7])]);
        for other in [
            question(8, "www.example.com", Kind::V4),
            question(7, "wwx.example.com", Kind::V4),
            question(7, "www.example.com", Kind::V6),
        ] {
            assert_eq!(answer(&bytes, &other, Kind::V4), None);
        }
        assert_eq!(answer(&asked, &asked, Kind::V4), None, "a question is no answer");
        for cut in 0..bytes.len() {
            assert_eq!(answer(&bytes[..cut], &asked, Kind::V4), None, "{cut}");
        }
        // Every byte may be anything: it is read to its end, or not at all.
        for at in 0..bytes.len() {
            for value in [0, 1, 63, 64, 191, 192, 255] {
                let mut bytes = bytes.clone();
                bytes[at] = value;
                drop(answer(&bytes, &asked, Kind::V4));
            }
        }
    }
}
