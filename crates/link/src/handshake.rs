//! How both ends of a link authenticate, and the keeper's first message.
//!
//! The keeper opens with a [`KeeperChallenge`]; the daemon answers with a [`Hello`]; the keeper answers with a
//! [`Welcome`] or turns it away. Either proof covers both nonces, both versions and the epoch, and the
//! two are labelled, so that neither can be replayed or reflected.

use crate::bounds::EnforcedLimit;
use crate::exec_kind::ExecKind;
use crate::frame::{Layer, RawFrame, append, kind};
use crate::record::ExitRecord;
use crate::secret::KeeperSecret;
use crate::sha256::{DIGEST_LEN, hmac_sha256};
use crate::wire::{DecodeError, FieldReader, FieldWriter};

/// The version of the link that this code speaks.
pub const VERSION: u32 = 2;
/// The first version whose keepers know jobs. An earlier one takes the start of a job for nonsense, and closes the link.
const JOBS_SINCE: u32 = 2;
/// Bytes of a nonce.
pub const NONCE_LEN: usize = 32;

/// The keeper's first frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeeperChallenge {
    pub version: u32,
    pub nonce: [u8; NONCE_LEN],
}

/// The daemon's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    pub version: u32,
    pub epoch: u64,
    pub nonce: [u8; NONCE_LEN],
    pub proof: [u8; DIGEST_LEN],
}

/// The keeper's answer to a daemon that proved itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    pub proof: [u8; DIGEST_LEN],
    pub version: u32,
    pub incarnation: u32,
    /// The keeper as the host saw it, if it could see that.
    pub host_pid: Option<u32>,
    pub layers: Vec<Layer>,
    /// Every exec whose directory exists, up to `WELCOME_EXECS_MAX`.
    pub execs: Vec<KnownExec>,
    /// The limits of the sandbox and who enforces them.
    pub limits: Vec<EnforcedLimit>,
}

impl Welcome {
    /// Whether the keeper can be asked to start a job.
    pub fn supports_jobs(&self) -> bool {
        self.version >= JOBS_SINCE
    }
}

/// An exec that a keeper knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownExec {
    pub exec: String,
    pub kind: ExecKind,
    pub state: ExecState,
}

/// The state of an exec, as far as its keeper knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecState {
    Running {
        pid: u32,
    },
    Exited(ExitRecord),
    /// Claimed by a keeper that died, without an outcome.
    Lost,
}

/// Why a daemon is turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalReason {
    BadProof,
    /// A daemon of this later epoch was here before.
    OldEpoch {
        current: u64,
    },
    TooManyWaiting,
}

/// The keeper's last frame to a daemon that it does not serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionRefused {
    pub why: RefusalReason,
}

/// What only a daemon that knows the secret can answer.
pub fn daemon_proof(secret: &KeeperSecret, challenge: &KeeperChallenge, hello: &Hello) -> [u8; DIGEST_LEN] {
    proof(secret, b"lodge daemon\0", challenge, hello)
}

/// What only the keeper that knows the secret can answer.
pub fn keeper_proof(secret: &KeeperSecret, challenge: &KeeperChallenge, hello: &Hello) -> [u8; DIGEST_LEN] {
    proof(secret, b"lodge keeper\0", challenge, hello)
}

fn proof(
    secret: &KeeperSecret,
    label: &[u8],
    challenge: &KeeperChallenge,
    hello: &Hello,
) -> [u8; DIGEST_LEN] {
    let (keeper_version, daemon_version) = (challenge.version.to_le_bytes(), hello.version.to_le_bytes());
    let epoch = hello.epoch.to_le_bytes();
    let parts: [&[u8]; 6] = [label, &challenge.nonce, &hello.nonce, &epoch, &keeper_version, &daemon_version];
    hmac_sha256(secret.expose(), &parts)
}

impl KeeperChallenge {
    pub fn append_to(&self, out: &mut Vec<u8>) {
        append(out, kind::CHALLENGE, |put| {
            put.u32(self.version).fixed(&self.nonce);
        });
    }

    /// `None` is another type of frame.
    pub fn decode(frame: RawFrame<'_>) -> Result<Option<KeeperChallenge>, DecodeError> {
        let mut take = FieldReader::new(frame.payload);
        if frame.kind != kind::CHALLENGE {
            return Ok(None);
        }
        Ok(Some(KeeperChallenge { version: take.u32()?, nonce: take.fixed()? }))
    }
}

impl Hello {
    pub fn append_to(&self, out: &mut Vec<u8>) {
        append(out, kind::HELLO, |put| {
            put.u32(self.version).u64(self.epoch).fixed(&self.nonce).fixed(&self.proof);
        });
    }

    /// `None` is another type of frame.
    pub fn decode(frame: RawFrame<'_>) -> Result<Option<Hello>, DecodeError> {
        let mut take = FieldReader::new(frame.payload);
        if frame.kind != kind::HELLO {
            return Ok(None);
        }
        let (version, epoch) = (take.u32()?, take.u64()?);
        Ok(Some(Hello { version, epoch, nonce: take.fixed()?, proof: take.fixed()? }))
    }
}

impl Welcome {
    pub fn append_to(&self, out: &mut Vec<u8>) {
        append(out, kind::WELCOME, |put| {
            put.fixed(&self.proof).u32(self.version).u32(self.incarnation);
            put.u32(self.host_pid.unwrap_or(0));
            put.list(&self.layers, |put, layer| {
                put.text(&layer.name).u8(layer.missing.is_some().into());
                put.text(layer.missing.as_deref().unwrap_or(""));
            });
            put.list(&self.execs, |put, known| known.put(put));
            put.list(&self.limits, |put, limit| limit.put(put));
        });
    }

    /// `None` is another type of frame.
    pub fn decode(frame: RawFrame<'_>) -> Result<Option<Welcome>, DecodeError> {
        let mut take = FieldReader::new(frame.payload);
        if frame.kind != kind::WELCOME {
            return Ok(None);
        }
        Ok(Some(Welcome {
            proof: take.fixed()?,
            version: take.u32()?,
            incarnation: take.u32()?,
            host_pid: match take.u32()? {
                0 => None,
                pid => Some(pid),
            },
            layers: take.list(|take| {
                let (name, missing, why) = (take.text()?, take.u8()? != 0, take.text()?);
                Ok(Layer { name, missing: missing.then_some(why) })
            })?,
            execs: take.list(KnownExec::take)?.into_iter().flatten().collect(),
            // Earlier keepers do not send limits.
            limits: if take.is_empty() {
                Vec::new()
            } else {
                take.list(EnforcedLimit::take)?.into_iter().flatten().collect()
            },
        }))
    }
}

impl KnownExec {
    fn put(&self, put: &mut FieldWriter) {
        put.text(&self.exec);
        match &self.state {
            ExecState::Running { pid } => put.u8(1).u32(*pid),
            ExecState::Exited(record) => put.u8(2).bytes(&record.encode()),
            ExecState::Lost => put.u8(3),
        };
        self.kind.put(put);
    }

    /// `None` is an exec of a kind that a later version added.
    fn take(take: &mut FieldReader<'_>) -> Result<Option<KnownExec>, DecodeError> {
        let exec = take.text()?;
        let state = match take.u8()? {
            1 => ExecState::Running { pid: take.u32()? },
            2 => ExecState::Exited(ExitRecord::decode(take.bytes()?)?),
            3 => ExecState::Lost,
            unknown => return Err(DecodeError::BadTag(unknown)),
        };
        Ok(ExecKind::take(take, &exec)?.map(|kind| KnownExec { exec, kind, state }))
    }
}

impl ConnectionRefused {
    pub fn append_to(&self, out: &mut Vec<u8>) {
        append(out, kind::TURNED_AWAY, |put| {
            match self.why {
                RefusalReason::BadProof => put.u8(1).u64(0),
                RefusalReason::OldEpoch { current } => put.u8(2).u64(current),
                RefusalReason::TooManyWaiting => put.u8(3).u64(0),
            };
        });
    }

    /// `None` is another type of frame.
    pub fn decode(frame: RawFrame<'_>) -> Result<Option<ConnectionRefused>, DecodeError> {
        let mut take = FieldReader::new(frame.payload);
        if frame.kind != kind::TURNED_AWAY {
            return Ok(None);
        }
        let (tag, current) = (take.u8()?, take.u64()?);
        let why = match tag {
            1 => RefusalReason::BadProof,
            2 => RefusalReason::OldEpoch { current },
            3 => RefusalReason::TooManyWaiting,
            unknown => return Err(DecodeError::BadTag(unknown)),
        };
        Ok(Some(ConnectionRefused { why }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assembler::Assembler;

    fn pair() -> (KeeperChallenge, Hello) {
        let challenge = KeeperChallenge { version: VERSION, nonce: [1; NONCE_LEN] };
        let hello = Hello { version: VERSION, epoch: 5, nonce: [2; NONCE_LEN], proof: [0; DIGEST_LEN] };
        (challenge, hello)
    }

    #[test]
    fn a_proof_depends_on_its_side_the_secret_both_nonces_and_the_epoch() {
        let (challenge, hello) = pair();
        let secret = KeeperSecret::new([7; 32]);
        let proof = daemon_proof(&secret, &challenge, &hello);
        assert_ne!(proof, keeper_proof(&secret, &challenge, &hello));
        assert_ne!(proof, daemon_proof(&KeeperSecret::new([8; 32]), &challenge, &hello));
        assert_ne!(
            proof,
            daemon_proof(&secret, &KeeperChallenge { nonce: [9; 32], ..challenge.clone() }, &hello)
        );
        assert_ne!(proof, daemon_proof(&secret, &challenge, &Hello { nonce: [9; 32], ..hello.clone() }));
        assert_ne!(proof, daemon_proof(&secret, &challenge, &Hello { epoch: 6, ..hello }));
    }

    #[test]
    fn handshake_frames_come_back() {
        let (challenge, hello) = pair();
        let welcome = Welcome {
            proof: [3; DIGEST_LEN],
            version: VERSION,
            incarnation: 2,
            host_pid: Some(77),
            layers: vec![
                Layer { name: "pidns".to_owned(), missing: None },
                Layer { name: "landlock".to_owned(), missing: Some("no such syscall".to_owned()) },
            ],
            execs: vec![
                KnownExec {
                    exec: "e1".to_owned(),
                    kind: ExecKind::Runtime,
                    state: ExecState::Running { pid: 4 },
                },
                KnownExec { exec: "e2".to_owned(), kind: ExecKind::Job, state: ExecState::Lost },
            ],
            limits: vec![EnforcedLimit {
                resource: crate::bounds::Resource::Disk,
                limit: 5,
                by: "watching".to_owned(),
            }],
        };
        let away = ConnectionRefused { why: RefusalReason::OldEpoch { current: 8 } };
        let mut stream = Vec::new();
        challenge.append_to(&mut stream);
        hello.append_to(&mut stream);
        welcome.append_to(&mut stream);
        away.append_to(&mut stream);
        let mut assembler = Assembler::default();
        assembler.push(&stream);
        assert_eq!(
            KeeperChallenge::decode(assembler.next_frame(4096).unwrap().unwrap()),
            Ok(Some(challenge))
        );
        assert_eq!(Hello::decode(assembler.next_frame(4096).unwrap().unwrap()), Ok(Some(hello)));
        assert_eq!(Welcome::decode(assembler.next_frame(4096).unwrap().unwrap()), Ok(Some(welcome)));
        assert_eq!(ConnectionRefused::decode(assembler.next_frame(4096).unwrap().unwrap()), Ok(Some(away)));
    }

    #[test]
    fn the_kind_of_an_exec_that_an_earlier_keeper_knows_is_derived_from_the_id() {
        let states = [ExecState::Running { pid: 4 }, ExecState::Lost];
        let ids = ["e1", "exe_runtime1", "job_1"];
        for (exec, state) in ids.into_iter().flat_map(|exec| states.clone().map(|state| (exec, state))) {
            let known = KnownExec { exec: exec.to_owned(), kind: ExecKind::of_id(exec), state };
            let mut put = FieldWriter::default();
            known.put(&mut put);
            let earlier = &put.out[..put.out.len() - 1];
            assert_eq!(KnownExec::take(&mut FieldReader::new(earlier)), Ok(Some(known)));
            *put.out.last_mut().unwrap() = 200;
            assert_eq!(KnownExec::take(&mut FieldReader::new(&put.out)), Ok(None), "a later kind");
        }
    }
}
