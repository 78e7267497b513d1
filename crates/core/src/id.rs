//! Identifiers: typed, prefixed, sortable by the time they were made.

use std::fmt;

use crate::Timestamp;

/// Crockford's alphabet: sortable, no letters that look like digits.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// 45 bits of milliseconds (until the year 3084), then 40 bits of chance.
const TIME_CHARS: u32 = 9;
const CHANCE_CHARS: u32 = 8;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not an id of kind {kind}: those start with `{prefix}_`")]
pub struct BadId {
    pub given: String,
    pub kind: &'static str,
    pub prefix: &'static str,
}

/// Creates ids. Seeded, so that a simulation is reproducible.
#[derive(Debug, Clone)]
pub struct IdSource {
    state: u64,
}

impl IdSource {
    pub fn new(seed: u64) -> Self {
        IdSource { state: seed }
    }

    /// SplitMix64: ids need to be distinct, not secret.
    fn chance(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn body(&mut self, now: Timestamp) -> String {
        let mut body = String::with_capacity((TIME_CHARS + CHANCE_CHARS) as usize);
        let ms = now.ms().max(0).cast_unsigned();
        push_base32(&mut body, ms, TIME_CHARS);
        let chance = self.chance();
        push_base32(&mut body, chance, CHANCE_CHARS);
        body
    }
}

fn push_base32(out: &mut String, value: u64, chars: u32) {
    for place in (0..chars).rev() {
        let digit = (value >> (5 * place)) & 31;
        out.push(char::from(ALPHABET[digit as usize]));
    }
}

/// The shortest and the longest id that a client may choose: it becomes the name of a directory.
pub const CHOSEN_ID_MIN: usize = 4;
pub const CHOSEN_ID_MAX: usize = 64;
/// What ids begin with that the daemon makes.
const MADE_PREFIXES: [&str; 12] =
    ["agt_", "evt_", "exe_", "job_", "lin_", "qst_", "sbx_", "ses_", "stp_", "tok_", "trn_", "wrk_"];

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadChosenId {
    #[error("`{given}` cannot be an id")]
    Grammar { given: String },
    #[error("`{given}` is reserved")]
    Reserved { given: String },
}

fn check_chosen(given: &str) -> Result<(), BadChosenId> {
    let ends = [given.bytes().next(), given.bytes().next_back()];
    let fits = (CHOSEN_ID_MIN..=CHOSEN_ID_MAX).contains(&given.len())
        && given.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
        && ends.into_iter().flatten().all(|b| b.is_ascii_alphanumeric());
    if !fits {
        return Err(BadChosenId::Grammar { given: given.to_owned() });
    }
    // The daemon's own stream of events has a name, too.
    if given == crate::record::DAEMON_STREAM || MADE_PREFIXES.iter().any(|prefix| given.starts_with(prefix)) {
        return Err(BadChosenId::Reserved { given: given.to_owned() });
    }
    Ok(())
}

macro_rules! typed_id {
    ($(#[$meta:meta])* $name:ident, $kind:literal, $prefix:literal) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            pub const PREFIX: &'static str = $prefix;

            pub fn new(source: &mut IdSource, now: Timestamp) -> Self {
                $name(format!("{}_{}", $prefix, source.body(now)))
            }

            /// Sorts after every id that was created before this time, and before all others.
            pub fn earliest_at(at: Timestamp) -> Self {
                let mut id = format!("{}_", $prefix);
                push_base32(&mut id, at.ms().max(0).cast_unsigned(), TIME_CHARS);
                $name(id)
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

/// Ids that only the daemon makes.
macro_rules! made_id {
    ($(#[$meta:meta])* $name:ident, $kind:literal, $prefix:literal) => {
        typed_id!($(#[$meta])* $name, $kind, $prefix);

        impl std::str::FromStr for $name {
            type Err = BadId;

            fn from_str(given: &str) -> Result<Self, BadId> {
                let known = given
                    .strip_prefix(concat!($prefix, "_"))
                    .is_some_and(|body| !body.is_empty() && body.bytes().all(|b| ALPHABET.contains(&b)));
                if known {
                    Ok($name(given.to_owned()))
                } else {
                    Err(BadId { given: given.to_owned(), kind: $kind, prefix: $prefix })
                }
            }
        }
    };
}

/// Ids that clients may choose, too.
macro_rules! chosen_id {
    ($(#[$meta:meta])* $name:ident, $kind:literal, $prefix:literal) => {
        typed_id!($(#[$meta])* $name, $kind, $prefix);

        impl $name {
            /// An id that a client chose. It is never like one that the daemon makes.
            pub fn choose(given: &str) -> Result<Self, BadChosenId> {
                check_chosen(given)?;
                Ok($name(given.to_owned()))
            }
        }

        impl std::str::FromStr for $name {
            type Err = BadId;

            fn from_str(given: &str) -> Result<Self, BadId> {
                let made = given
                    .strip_prefix(concat!($prefix, "_"))
                    .is_some_and(|body| !body.is_empty() && body.bytes().all(|b| ALPHABET.contains(&b)));
                if made || check_chosen(given).is_ok() {
                    Ok($name(given.to_owned()))
                } else {
                    Err(BadId { given: given.to_owned(), kind: $kind, prefix: $prefix })
                }
            }
        }
    };
}

made_id!(/// One configured agent.
    AgentId, "agent", "agt");
made_id!(/// The identity of an agent's work across processes and restarts.
    LineageId, "lineage", "lin");
chosen_id!(/// Where programs run.
    SandboxId, "sandbox", "sbx");
made_id!(/// One message in, one answer out.
    TurnId, "turn", "trn");
made_id!(/// One model call or tool call of a turn.
    StepId, "step", "stp");
chosen_id!(/// One program run in a sandbox.
    ExecId, "exec", "exe");
made_id!(/// One program that runs in the background.
    JobId, "job", "job");
made_id!(/// One piece of work that is set aside.
    WorkId, "work", "wrk");
made_id!(/// One token that opens the API.
    TokenId, "token", "tok");

/// A conversation. People may choose the id, so it has no fixed prefix.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(String);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not a session id: 1 to 128 of A-Z a-z 0-9 . _ : -")]
pub struct BadSessionId {
    pub given: String,
}

impl SessionId {
    pub const LEN_MAX: usize = 128;

    pub fn new(source: &mut IdSource, now: Timestamp) -> Self {
        SessionId(format!("ses_{}", source.body(now)))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for SessionId {
    type Err = BadSessionId;

    fn from_str(given: &str) -> Result<Self, BadSessionId> {
        let fits = (1..=Self::LEN_MAX).contains(&given.len())
            && given.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:-".contains(&b));
        if fits { Ok(SessionId(given.to_owned())) } else { Err(BadSessionId { given: given.to_owned() }) }
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_the_time_they_were_made() {
        let mut source = IdSource::new(7);
        let early = TurnId::new(&mut source, Timestamp::from_ms(1_000));
        let late = TurnId::new(&mut source, Timestamp::from_ms(1_001));
        assert!(early < late);
        assert!(early < TurnId::earliest_at(Timestamp::from_ms(1_001)));
        assert!(TurnId::earliest_at(Timestamp::from_ms(1_001)) < late);
    }

    #[test]
    fn an_id_of_another_kind_is_refused_by_name() {
        let mut source = IdSource::new(7);
        let turn = TurnId::new(&mut source, Timestamp::from_ms(1));
        let refused = turn.as_str().parse::<AgentId>().unwrap_err();
        assert!(refused.to_string().ends_with("is not an id of kind agent: those start with `agt_`"));
    }

    #[test]
    fn a_chosen_id_is_a_plain_name_and_never_like_a_made_one() {
        let longest = "x".repeat(CHOSEN_ID_MAX);
        for good in ["my_box-1", "4abc", "Abcd", &longest] {
            assert_eq!(SandboxId::choose(good).map(|id| id.to_string()), Ok(good.to_owned()));
            assert!(good.parse::<ExecId>().is_ok(), "{good}");
        }
        let longer = "x".repeat(CHOSEN_ID_MAX + 1);
        for bad in ["", "abc", "-abcd", "abcd_", "a/bcd", "ab.cd", "ab cd", "äbcd", &longer] {
            assert!(matches!(SandboxId::choose(bad), Err(BadChosenId::Grammar { .. })), "{bad}");
        }
        for taken in ["daemon", "sbx_0123", "exe_1", "agt_chosen", "job_0cs9"] {
            assert!(matches!(ExecId::choose(taken), Err(BadChosenId::Reserved { .. })), "{taken}");
        }
        let made = SandboxId::new(&mut IdSource::new(7), Timestamp::from_ms(1));
        assert_eq!(made.as_str().parse(), Ok(made.clone()));
        assert!(made.as_str().parse::<ExecId>().is_err());
    }

    #[test]
    fn a_session_id_takes_what_people_write_and_nothing_that_leaves_a_directory() {
        for good in ["cli:chat:1", "a", "A.b_c-9", &"x".repeat(128)] {
            assert!(good.parse::<SessionId>().is_ok(), "{good}");
        }
        for bad in ["", "a/b", "a b", "ä", &"x".repeat(129)] {
            assert!(bad.parse::<SessionId>().is_err(), "{bad}");
        }
    }
}
