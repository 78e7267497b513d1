//! Questions to a name server and its answers, byte for byte.
//!
//! Owns: the part of the protocol that a stub and one who passes questions on need. Never: sockets.

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
const CODE_FAILED: u16 = 2;
const CODE_UNKNOWN: u16 = 4;
const CODE_REFUSED: u16 = 5;
const OPCODE_MASK: u16 = 0xf << 11;
const RECURSES: u16 = 1 << 7;
/// How long an answer from the host's own file may be cached.
const OWN_TTL_S: u16 = 5;
/// Most addresses that one answer opens. A name that has more is as well served by these.
pub(crate) const ANSWER_ADDRESSES_MAX: usize = 64;
/// Lengths from here on are none.
const LABEL_END: u8 = 64;
/// Where the longest question ends.
const NAME_END_MAX: usize = HEADER_LEN + 255 + 4;
/// The two highest bits of a length that is really an offset.
const POINTER: u8 = 0xc0;

/// The kind of the requested address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddressKind {
    V4,
    V6,
}

impl AddressKind {
    fn number(self) -> u16 {
        match self {
            AddressKind::V4 => 1,
            AddressKind::V6 => 28,
        }
    }
}

/// What a program asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DnsQuestion {
    /// In small letters, without a dot at its end. None: a label has bytes that no name of a host has, so that two
    /// readers could see two names.
    pub(crate) name: Option<String>,
    record: u16,
    /// Where the question ends.
    end: usize,
}

impl DnsQuestion {
    pub(crate) fn wants_address(&self) -> bool {
        [AddressKind::V4, AddressKind::V6].iter().any(|kind| kind.number() == self.record)
    }

    pub(crate) fn wants(&self, address: IpAddr) -> bool {
        let kind = if address.is_ipv4() { AddressKind::V4 } else { AddressKind::V6 };
        kind.number() == self.record
    }
}

/// How a reply of our own goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DnsCode {
    Fine = 0,
    Failed = 2,
    NoName = 3,
}

/// What an answer says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DnsAnswer {
    /// Perhaps none of this kind.
    Addresses(Vec<IpAddr>),
    NoSuchName,
    /// It did not fit: it must be requested over a stream.
    Cut,
    /// The server could not say.
    Failed,
}

/// A question. `name` is one that was checked.
pub(crate) fn question(id: u16, name: &str, kind: AddressKind) -> Vec<u8> {
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
pub(crate) fn answer(bytes: &[u8], question: &[u8], kind: AddressKind) -> Option<DnsAnswer> {
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
        return Some(DnsAnswer::Cut);
    }
    match flags & CODE_MASK {
        0 => {}
        CODE_NO_NAME => return Some(DnsAnswer::NoSuchName),
        1.. => return Some(DnsAnswer::Failed),
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
    Some(DnsAnswer::Addresses(found))
}

/// Parses a question of a program. None: it is malformed, or of an unsupported kind.
pub(crate) fn parse_question(message: &[u8]) -> Option<DnsQuestion> {
    let [flags, questions] = [2, 4].map(|at| word(message, at).unwrap_or_default());
    if flags & (IS_ANSWER | OPCODE_MASK) != 0 || questions != 1 {
        return None;
    }
    let (mut at, mut labels) = (HEADER_LEN, Vec::new());
    loop {
        let len = usize::from(*message.get(at)?);
        if len == 0 {
            break;
        }
        // Nothing comes before a question that a pointer in it could mean.
        let label = message.get(at + 1..at + 1 + len).filter(|_| len < usize::from(LABEL_END))?;
        let is_plain = |byte: &u8| byte.is_ascii_graphic() && *byte != b'.';
        labels.push(
            str::from_utf8(label).ok().filter(|_| label.iter().all(is_plain)).map(str::to_ascii_lowercase),
        );
        at += 1 + len;
    }
    let (record, class) = (word(message, at + 1)?, word(message, at + 3)?);
    let end = at + 5;
    (class == CLASS_INTERNET && end <= NAME_END_MAX).then(|| {
        let name = labels.into_iter().collect::<Option<Vec<String>>>().map(|labels| labels.join("."));
        DnsQuestion { name, record, end }
    })
}

/// An answer of our own to a question that was read, with addresses of the kind that it asks for.
pub(crate) fn reply(message: &[u8], asked: &DnsQuestion, code: DnsCode, addresses: &[IpAddr]) -> Vec<u8> {
    let mut out = message[..asked.end].to_vec();
    let wants_recursion = word(message, 2).unwrap_or_default() & ASKS_RECURSION;
    let flags = IS_ANSWER | wants_recursion | RECURSES | code as u16;
    let counts = [flags, 1, addresses.len() as u16, 0, 0];
    for (at, value) in counts.into_iter().enumerate() {
        out[2 + at * 2..4 + at * 2].copy_from_slice(&value.to_be_bytes());
    }
    for address in addresses {
        let octets = match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        out.extend_from_slice(&[POINTER, HEADER_LEN as u8]);
        for value in [asked.record, CLASS_INTERNET, 0, OWN_TTL_S, octets.len() as u16] {
            out.extend_from_slice(&value.to_be_bytes());
        }
        out.extend_from_slice(&octets);
    }
    out
}

/// Whether this is an answer to that message.
pub(crate) fn answers(answer: &[u8], message: &[u8]) -> bool {
    let Some(asked) = parse_question(message) else { return false };
    let repeated = answer.get(HEADER_LEN..asked.end);
    word(answer, 0) == word(message, 0)
        && word(answer, 2).is_some_and(|flags| flags & IS_ANSWER != 0)
        && word(answer, 4) == Some(1)
        && repeated.is_some_and(|repeated| repeated.eq_ignore_ascii_case(&message[HEADER_LEN..asked.end]))
}

/// Whether a server says that it could not, so that another may.
pub(crate) fn is_failure(answer: &[u8]) -> bool {
    let code = word(answer, 2).unwrap_or_default() & CODE_MASK;
    matches!(code, CODE_FAILED | CODE_UNKNOWN | CODE_REFUSED)
}

/// The first addresses among the records of an answer, as far as it can be read.
pub(crate) fn addresses(answer: &[u8]) -> Vec<IpAddr> {
    let mut found = Vec::new();
    let read = |found: &mut Vec<IpAddr>| -> Option<()> {
        let mut at = after_name(answer, HEADER_LEN)? + 4;
        for _ in 0..word(answer, 6)? {
            at = after_name(answer, at)?;
            let (record, class, len) =
                (word(answer, at)?, word(answer, at + 2)?, usize::from(word(answer, at + 8)?));
            let data = answer.get(at + 10..at + 10 + len)?;
            let kind = [AddressKind::V4, AddressKind::V6].into_iter().find(|kind| kind.number() == record);
            found.extend(kind.filter(|_| class == CLASS_INTERNET).and_then(|kind| address(data, kind)));
            at += 10 + len;
            if found.len() == ANSWER_ADDRESSES_MAX {
                break;
            }
        }
        Some(())
    };
    // Records before a malformed one count.
    let _complete = read(&mut found);
    found
}

fn address(data: &[u8], kind: AddressKind) -> Option<IpAddr> {
    match kind {
        AddressKind::V4 => data.try_into().ok().map(|octets: [u8; 4]| IpAddr::V4(Ipv4Addr::from(octets))),
        AddressKind::V6 => data.try_into().ok().map(|octets: [u8; 16]| IpAddr::V6(Ipv6Addr::from(octets))),
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

    /// An answer with these records, as (kind, data), each for the requested name.
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
        let asked = question(7, "www.example.com", AddressKind::V4);
        let bytes = answered(&asked, 0, &[(5, b"\x01a\xc0\x10"), (1, &[192, 0, 2, 7]), (28, &[0; 16])]);
        let found = vec![IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7))];
        assert_eq!(answer(&bytes, &asked, AddressKind::V4), Some(DnsAnswer::Addresses(found)));
        let shouted = bytes.to_ascii_uppercase();
        assert!(answer(&shouted, &asked, AddressKind::V4).is_some());
        for (flags, said) in [(IS_CUT, DnsAnswer::Cut), (3, DnsAnswer::NoSuchName), (2, DnsAnswer::Failed)] {
            assert_eq!(answer(&answered(&asked, flags, &[]), &asked, AddressKind::V4), Some(said));
        }
    }

    #[test]
    fn an_answer_to_another_question_is_none_and_a_broken_one_says_nothing() {
        let asked = question(7, "www.example.com", AddressKind::V4);
        let bytes = answered(&asked, 0, &[(1, &[192, 0, 2, 7])]);
        for other in [
            question(8, "www.example.com", AddressKind::V4),
            question(7, "wwx.example.com", AddressKind::V4),
            question(7, "www.example.com", AddressKind::V6),
        ] {
            assert_eq!(answer(&bytes, &other, AddressKind::V4), None);
        }
        assert_eq!(answer(&asked, &asked, AddressKind::V4), None, "a question is no answer");
        for cut in 0..bytes.len() {
            assert_eq!(answer(&bytes[..cut], &asked, AddressKind::V4), None, "{cut}");
        }
        // Every byte may be anything: it is read to its end, or not at all.
        for at in 0..bytes.len() {
            for value in [0, 1, 63, 64, 191, 192, 255] {
                let mut bytes = bytes.clone();
                bytes[at] = value;
                drop(answer(&bytes, &asked, AddressKind::V4));
            }
        }
    }

    #[test]
    fn a_label_that_no_host_has_makes_no_name() {
        for odd in [&b"a.example"[..], b"a\0", b"\xc3\xa4", b"a b", b"\xff"] {
            let mut message = question(7, "x.com", AddressKind::V4);
            message.splice(HEADER_LEN..HEADER_LEN + 2, [&[odd.len() as u8], odd].concat());
            let read = parse_question(&message).unwrap();
            assert_eq!(read.name, None, "{odd:?}");
            // It can still be passed on and answered.
            assert!(answers(&reply(&message, &read, DnsCode::NoName, &[]), &message));
        }
        let message = question(7, "_sip._tcp.Ex-ample.com", AddressKind::V4);
        assert_eq!(parse_question(&message).unwrap().name.as_deref(), Some("_sip._tcp.ex-ample.com"));
    }

    #[test]
    fn an_answer_opens_so_many_addresses_and_no_more() {
        let asked = question(7, "www.example.com", AddressKind::V4);
        let data: Vec<[u8; 4]> = (0..200).map(|last| [203, 0, 113, last]).collect();
        let records: Vec<(u16, &[u8])> = data.iter().map(|data| (1, &data[..])).collect();
        let found = addresses(&answered(&asked, 0, &records));
        assert_eq!((found.len(), found[0]), (ANSWER_ADDRESSES_MAX, IpAddr::from([203, 0, 113, 0])));
    }

    #[test]
    fn a_question_is_read_and_answered_and_nothing_else_is() {
        let message = question(7, "www.Example.com", AddressKind::V4);
        let read = parse_question(&message).unwrap();
        assert_eq!(read.name.as_deref(), Some("www.example.com"));
        let addresses_of = [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7)), IpAddr::V4(Ipv4Addr::new(192, 0, 2, 8))];
        assert!(
            read.wants_address() && read.wants(addresses_of[0]) && !read.wants(Ipv6Addr::LOCALHOST.into())
        );
        let out = reply(&message, &read, DnsCode::Fine, &addresses_of);
        assert!(answers(&out, &message) && !is_failure(&out));
        assert_eq!(
            answer(&out, &message, AddressKind::V4),
            Some(DnsAnswer::Addresses(addresses_of.to_vec()))
        );
        assert_eq!(addresses(&out), addresses_of);
        let none = reply(&message, &read, DnsCode::NoName, &[]);
        assert_eq!(answer(&none, &message, AddressKind::V4), Some(DnsAnswer::NoSuchName));
        assert!(is_failure(&reply(&message, &read, DnsCode::Failed, &[])));
        assert!(parse_question(&out).is_none(), "an answer is no question");
        for cut in 0..message.len() {
            assert!(parse_question(&message[..cut]).is_none(), "{cut}");
        }
        // Every byte may be anything.
        for at in 0..out.len() {
            for value in [0, 1, 63, 64, 191, 192, 255] {
                let mut bytes = out.clone();
                bytes[at] = value;
                drop(addresses(&bytes));
                bytes[2] &= 0x7f;
                if let Some(read) = parse_question(&bytes) {
                    drop(reply(&bytes, &read, DnsCode::Fine, &addresses_of));
                }
            }
        }
    }
}
