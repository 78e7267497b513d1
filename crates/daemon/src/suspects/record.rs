//! What is in the file, and what follows from it. Pure: bytes in, suspects out. The bytes may be anything.

use lodge_core::quarantine::{DEATHS_MAX, Suspect, Work, WorkKind};
use lodge_core::{AgentId, TurnId};

/// Work that is watched at the same time. More is computed without a mark.
pub const SLOTS: usize = 2_048;
pub const SLOT_BYTES: usize = 128;
/// A page for the header, so that slots do not share one with it.
pub const HEADER_BYTES: usize = 4_096;
pub const FILE_BYTES: usize = HEADER_BYTES + SLOTS * SLOT_BYTES;

const MAGIC: &[u8; 8] = b"LODGSUS1";
const BOOT_BYTES_MAX: usize = 64;
/// Where in the header: the magic, how old the daemon is, its boot.
pub const AGE_AT: usize = 8;
const BOOT_AT: usize = 16;

/// Where in a slot: how many threads compute the work, deaths, kind, two lengths, two texts.
pub const COMPUTING_AT: usize = 0;
pub const DEATHS_AT: usize = 4;
const KIND_AT: usize = 8;
const SUBJECT_LEN_AT: usize = 9;
const DETAIL_LEN_AT: usize = 10;
const SUBJECT_AT: usize = 16;
const SUBJECT_MAX: usize = 48;
const DETAIL_AT: usize = SUBJECT_AT + SUBJECT_MAX;
const DETAIL_MAX: usize = SLOT_BYTES - DETAIL_AT;

/// How old the daemon that writes the file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DaemonAge {
    /// It started less than a minute ago.
    Young,
    Settled,
    /// It ended on request.
    Closed,
}

impl DaemonAge {
    pub fn code(self) -> u32 {
        match self {
            DaemonAge::Young => 1,
            DaemonAge::Settled => 2,
            DaemonAge::Closed => 3,
        }
    }
}

/// One slot, without its mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotRecord(pub [u8; SLOT_BYTES]);

impl SlotRecord {
    /// None where the subject is too long for it: no subject of ours is.
    pub fn new(work: &Work, detail: &str, deaths: u32) -> Option<SlotRecord> {
        let subject = work.subject.as_bytes();
        let detail = &detail.as_bytes()[..detail.floor_char_boundary(DETAIL_MAX)];
        if subject.is_empty() || subject.len() > SUBJECT_MAX {
            return None;
        }
        let mut bytes = [0; SLOT_BYTES];
        bytes[DEATHS_AT..DEATHS_AT + 4].copy_from_slice(&deaths.to_ne_bytes());
        bytes[KIND_AT] = work.kind.code();
        bytes[SUBJECT_LEN_AT] = u8::try_from(subject.len()).ok()?;
        bytes[DETAIL_LEN_AT] = u8::try_from(detail.len()).ok()?;
        bytes[SUBJECT_AT..SUBJECT_AT + subject.len()].copy_from_slice(subject);
        bytes[DETAIL_AT..DETAIL_AT + detail.len()].copy_from_slice(detail);
        Some(SlotRecord(bytes))
    }
}

/// The header of a daemon that starts.
pub fn header(boot: &str) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..MAGIC.len()].copy_from_slice(MAGIC);
    bytes[AGE_AT..AGE_AT + 4].copy_from_slice(&DaemonAge::Young.code().to_ne_bytes());
    bytes[BOOT_AT..BOOT_AT + BOOT_BYTES_MAX].copy_from_slice(&boot_bytes(boot));
    bytes
}

fn boot_bytes(boot: &str) -> [u8; BOOT_BYTES_MAX] {
    let mut bytes = [0; BOOT_BYTES_MAX];
    let boot = &boot.as_bytes()[..boot.len().min(BOOT_BYTES_MAX)];
    bytes[..boot.len()].copy_from_slice(boot);
    bytes
}

/// The work that daemons died with, one after the other, as the file of the last one has it.
///
/// A death counts against the work that was computed at that time, if the daemon was young. A daemon that lived longer,
/// that ended on request, or that died while it computed nothing, resets the counts: then nothing is suspect.
pub fn judge(bytes: &[u8], boot: &str) -> Vec<Suspect> {
    let ours = bytes.len() == FILE_BYTES
        && bytes.starts_with(MAGIC)
        && bytes[BOOT_AT..BOOT_AT + BOOT_BYTES_MAX] == boot_bytes(boot)
        && number(bytes, AGE_AT) == DaemonAge::Young.code();
    if !ours {
        return Vec::new();
    }
    let slots = bytes[HEADER_BYTES..].chunks_exact(SLOT_BYTES).filter_map(slot);
    let found: Vec<(bool, Suspect)> = slots.collect();
    if !found.iter().any(|(computing, _)| *computing) {
        return Vec::new();
    }
    let counted = found.into_iter().map(|(computing, suspect)| Suspect {
        deaths: suspect.deaths.saturating_add(u32::from(computing)).min(DEATHS_MAX),
        ..suspect
    });
    counted.filter(|suspect| suspect.deaths > 0).collect()
}

pub fn is_convicted(suspect: &Suspect) -> bool {
    suspect.deaths >= DEATHS_MAX
}

/// Whether the work was computed, and what it is; none for a slot that is free or makes no sense.
fn slot(bytes: &[u8]) -> Option<(bool, Suspect)> {
    let kind = WorkKind::from_code(i64::from(bytes[KIND_AT]))?;
    let subject = text(bytes, SUBJECT_AT, bytes[SUBJECT_LEN_AT], SUBJECT_MAX)?;
    let detail = text(bytes, DETAIL_AT, bytes[DETAIL_LEN_AT], DETAIL_MAX)?;
    let fits = match kind {
        WorkKind::ModelCall | WorkKind::SchemaCheck => subject.parse::<TurnId>().is_ok(),
        WorkKind::Pull => subject.parse::<AgentId>().is_ok(),
        WorkKind::Request => !subject.is_empty() && subject.bytes().all(|byte| byte.is_ascii_hexdigit()),
    };
    let deaths = number(bytes, DEATHS_AT);
    // No more than the last daemon let be: what is beyond that was not written by us.
    if !fits || deaths > DEATHS_MAX || detail.chars().any(char::is_control) {
        return None;
    }
    let work = Work { kind, subject: subject.to_owned() };
    Some((number(bytes, COMPUTING_AT) > 0, Suspect { work, detail: detail.to_owned(), deaths }))
}

fn text(bytes: &[u8], at: usize, len: u8, max: usize) -> Option<&str> {
    let len = usize::from(len);
    (len <= max).then(|| std::str::from_utf8(&bytes[at..at + len]).ok()).flatten()
}

fn number(bytes: &[u8], at: usize) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[at..at + 4]);
    u32::from_ne_bytes(four)
}
