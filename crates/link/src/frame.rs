//! Frames: a `u32` length, a type byte, fields. The commands of the daemon and the events of a keeper.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use crate::exec_kind::ExecKind;
use crate::record::ExitRecord;
use crate::wire::{DecodeError, FieldReader, FieldWriter};

pub(crate) const LEN_BYTES: usize = 4;

/// One program to run.
#[derive(Clone, PartialEq, Eq)]
pub struct StartExec {
    pub exec: String,
    pub kind: ExecKind,
    /// The program, searched in the given `PATH` unless it contains a slash, and its arguments.
    pub argv: Vec<OsString>,
    /// The whole environment: nothing is inherited.
    pub env: Vec<(OsString, OsString)>,
    pub cwd: PathBuf,
    /// Fed to a tool's stdin, which is then closed. A runtime's stays open.
    pub stdin: Vec<u8>,
    /// Most bytes kept of each stream.
    pub output_cap: u64,
    /// When it is ended, counted from its start; 0: never.
    pub timeout_ms: u64,
    /// Most bytes that it may write to both streams together before it is ended; 0: any number.
    pub output_max: u64,
    /// Of a job: how many bytes of the beginning of each stream are kept.
    pub job_head: u64,
    /// Of a job: how many bytes each of the last segments of a stream holds. The last one to two are kept.
    pub job_segment: u64,
    /// Of a job: below this many free bytes of the disk, its output is not kept.
    pub keep_free: u64,
}

impl fmt::Debug for StartExec {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Arguments, environment and input are what people and programs wrote.
        out.debug_struct("Start").field("exec", &self.exec).field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// What the daemon asks of a keeper. Each can be asked twice without harm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeeperCommand {
    Start(StartExec),
    /// SIGTERM to the exec and its descendants, and SIGKILL once the grace is over.
    Kill {
        exec: String,
        grace_ms: u32,
    },
    /// The outcome is recorded elsewhere: remove the exec's directory.
    Forget {
        exec: String,
    },
    /// One line, without its newline, for the runtime's stdin.
    RuntimeLine(Vec<u8>),
    /// End everything, then the keeper itself.
    End {
        grace_ms: u32,
    },
    Ping {
        token: u64,
    },
}

/// Events from a keeper to the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeeperEvent {
    /// The exec runs, as `pid` of the sandbox.
    Started {
        exec: String,
        kind: ExecKind,
        pid: u32,
    },
    /// The exec ended; its record lies in its directory.
    Exited {
        exec: String,
        kind: ExecKind,
        record: ExitRecord,
    },
    /// The exec was not started. If `recorded`, its claim and an exit record exist; else nothing does.
    Refused {
        exec: String,
        kind: ExecKind,
        why: String,
        recorded: bool,
    },
    /// The exec was claimed before, does not run, and left no record.
    Lost {
        exec: String,
        kind: ExecKind,
    },
    /// One line, without its newline, from the runtime's stdout.
    RuntimeLine(Vec<u8>),
    Pong {
        token: u64,
    },
    /// A job wrote this much to its streams so far.
    Output {
        exec: String,
        kind: ExecKind,
        stdout: u64,
        stderr: u64,
    },
}

/// Whether a layer of the fence holds, and if not, why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    pub name: String,
    pub missing: Option<String>,
}

/// A frame that was not decoded yet.
#[derive(Debug, Clone, Copy)]
pub struct RawFrame<'a> {
    pub kind: u8,
    pub payload: &'a [u8],
}

/// A peer sent a frame longer than it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameError {
    pub len: u32,
    pub len_max: usize,
}

impl fmt::Display for FrameError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "a frame of {} bytes, where {} are allowed", self.len, self.len_max)
    }
}

impl std::error::Error for FrameError {}

pub(crate) mod kind {
    pub(crate) const HELLO: u8 = 1;
    pub(crate) const START: u8 = 2;
    pub(crate) const KILL: u8 = 3;
    pub(crate) const FORGET: u8 = 4;
    pub(crate) const LINE_TO_RUNTIME: u8 = 5;
    pub(crate) const END: u8 = 6;
    pub(crate) const PING: u8 = 7;
    pub(crate) const CHALLENGE: u8 = 64;
    pub(crate) const WELCOME: u8 = 65;
    pub(crate) const TURNED_AWAY: u8 = 66;
    pub(crate) const STARTED: u8 = 67;
    pub(crate) const EXITED: u8 = 68;
    pub(crate) const REFUSED: u8 = 69;
    pub(crate) const LOST: u8 = 70;
    pub(crate) const LINE_FROM_RUNTIME: u8 = 71;
    pub(crate) const PONG: u8 = 72;
    pub(crate) const OUTPUT: u8 = 73;
}

/// Appends one frame to `out`, with the fields that `put` writes.
pub(crate) fn append(out: &mut Vec<u8>, kind: u8, put: impl FnOnce(&mut FieldWriter)) {
    let at = out.len();
    let mut fields = FieldWriter { out: std::mem::take(out) };
    fields.u32(0).u8(kind);
    put(&mut fields);
    *out = fields.out;
    let len = u32::try_from(out.len() - at - LEN_BYTES).unwrap_or(u32::MAX);
    out[at..at + LEN_BYTES].copy_from_slice(&len.to_le_bytes());
}

impl KeeperCommand {
    pub fn append_to(&self, out: &mut Vec<u8>) {
        match self {
            KeeperCommand::Start(start) => append(out, kind::START, |put| start.put(put)),
            KeeperCommand::Kill { exec, grace_ms } => append(out, kind::KILL, |put| {
                put.text(exec).u32(*grace_ms);
            }),
            KeeperCommand::Forget { exec } => append(out, kind::FORGET, |put| {
                put.text(exec);
            }),
            KeeperCommand::RuntimeLine(line) => append(out, kind::LINE_TO_RUNTIME, |put| {
                put.bytes(line);
            }),
            KeeperCommand::End { grace_ms } => append(out, kind::END, |put| {
                put.u32(*grace_ms);
            }),
            KeeperCommand::Ping { token } => append(out, kind::PING, |put| {
                put.u64(*token);
            }),
        }
    }

    /// `None` is a type that a later version added: skip it.
    pub fn decode(frame: RawFrame<'_>) -> Result<Option<KeeperCommand>, DecodeError> {
        let mut take = FieldReader::new(frame.payload);
        Ok(Some(match frame.kind {
            kind::START => KeeperCommand::Start(StartExec::take(&mut take)?),
            kind::KILL => KeeperCommand::Kill { exec: take.text()?, grace_ms: take.u32()? },
            kind::FORGET => KeeperCommand::Forget { exec: take.text()? },
            kind::LINE_TO_RUNTIME => KeeperCommand::RuntimeLine(take.bytes()?.to_vec()),
            kind::END => KeeperCommand::End { grace_ms: take.u32()? },
            kind::PING => KeeperCommand::Ping { token: take.u64()? },
            _unknown => return Ok(None),
        }))
    }
}

impl StartExec {
    fn put(&self, put: &mut FieldWriter) {
        put.text(&self.exec);
        self.kind.put(put);
        put.list(&self.argv, |put, arg| {
            put.os(arg);
        });
        put.list(&self.env, |put, (name, value)| {
            put.os(name).os(value);
        });
        put.os(self.cwd.as_os_str()).bytes(&self.stdin).u64(self.output_cap);
        put.u64(self.timeout_ms).u64(self.output_max);
        put.u64(self.job_head).u64(self.job_segment).u64(self.keep_free);
    }

    fn take(take: &mut FieldReader<'_>) -> Result<StartExec, DecodeError> {
        Ok(StartExec {
            exec: take.text()?,
            kind: {
                let code = take.u8()?;
                ExecKind::from_code(code).ok_or(DecodeError::BadTag(code))?
            },
            argv: take.list(|take| take.os())?,
            env: take.list(|take| Ok((take.os()?, take.os()?)))?,
            cwd: take.os()?.into(),
            stdin: take.bytes()?.to_vec(),
            output_cap: take.u64()?,
            // Daemons before these knew none of them.
            timeout_ms: if take.is_empty() { 0 } else { take.u64()? },
            output_max: if take.is_empty() { 0 } else { take.u64()? },
            job_head: if take.is_empty() { 0 } else { take.u64()? },
            job_segment: if take.is_empty() { 0 } else { take.u64()? },
            keep_free: if take.is_empty() { 0 } else { take.u64()? },
        })
    }
}

impl KeeperEvent {
    pub fn append_to(&self, out: &mut Vec<u8>) {
        match self {
            KeeperEvent::Started { exec, kind, pid } => append(out, kind::STARTED, |put| {
                kind.put(put.text(exec).u32(*pid));
            }),
            KeeperEvent::Exited { exec, kind, record } => append(out, kind::EXITED, |put| {
                kind.put(put.text(exec).bytes(&record.encode()));
            }),
            KeeperEvent::Refused { exec, kind, why, recorded } => append(out, kind::REFUSED, |put| {
                kind.put(put.text(exec).text(why).u8((*recorded).into()));
            }),
            KeeperEvent::Lost { exec, kind } => append(out, kind::LOST, |put| {
                kind.put(put.text(exec));
            }),
            KeeperEvent::RuntimeLine(line) => KeeperEvent::append_runtime_line(line, out),
            KeeperEvent::Pong { token } => append(out, kind::PONG, |put| {
                put.u64(*token);
            }),
            KeeperEvent::Output { exec, kind, stdout, stderr } => append(out, kind::OUTPUT, |put| {
                kind.put(put.text(exec).u64(*stdout).u64(*stderr));
            }),
        }
    }

    /// As [`Event::RuntimeLine`], without owning the line.
    pub fn append_runtime_line(line: &[u8], out: &mut Vec<u8>) {
        append(out, kind::LINE_FROM_RUNTIME, |put| {
            put.bytes(line);
        });
    }

    /// `None` is a type of frame or a kind of exec that a later version added: skip it.
    pub fn decode(frame: RawFrame<'_>) -> Result<Option<KeeperEvent>, DecodeError> {
        let mut take = FieldReader::new(frame.payload);
        match frame.kind {
            kind::LINE_FROM_RUNTIME => Ok(Some(KeeperEvent::RuntimeLine(take.bytes()?.to_vec()))),
            kind::PONG => Ok(Some(KeeperEvent::Pong { token: take.u64()? })),
            kind::STARTED => {
                let (exec, pid) = (take.text()?, take.u32()?);
                Ok(ExecKind::take(&mut take, &exec)?.map(|kind| KeeperEvent::Started { exec, kind, pid }))
            }
            kind::EXITED => {
                let (exec, record) = (take.text()?, ExitRecord::decode(take.bytes()?)?);
                Ok(ExecKind::take(&mut take, &exec)?.map(|kind| KeeperEvent::Exited { exec, kind, record }))
            }
            kind::REFUSED => {
                let (exec, why, recorded) = (take.text()?, take.text()?, take.u8()? != 0);
                let kind = ExecKind::take(&mut take, &exec)?;
                Ok(kind.map(|kind| KeeperEvent::Refused { exec, kind, why, recorded }))
            }
            kind::LOST => {
                let exec = take.text()?;
                Ok(ExecKind::take(&mut take, &exec)?.map(|kind| KeeperEvent::Lost { exec, kind }))
            }
            kind::OUTPUT => {
                let (exec, stdout, stderr) = (take.text()?, take.u64()?, take.u64()?);
                let kind = ExecKind::take(&mut take, &exec)?;
                Ok(kind.map(|kind| KeeperEvent::Output { exec, kind, stdout, stderr }))
            }
            _unknown => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assembler::Assembler;
    use crate::record::{ExitOutcome, ResourceUsage, StreamCount};

    fn commands() -> Vec<KeeperCommand> {
        let start = StartExec {
            exec: "e1".to_owned(),
            kind: ExecKind::Tool,
            argv: vec!["sh".into(), "-c".into()],
            env: vec![("A".into(), "b=c".into())],
            cwd: "/".into(),
            stdin: b"in".to_vec(),
            output_cap: 10,
            timeout_ms: 11,
            output_max: 12,
            job_head: 13,
            job_segment: 14,
            keep_free: 15,
        };
        vec![
            KeeperCommand::Start(StartExec { kind: ExecKind::Job, ..start.clone() }),
            KeeperCommand::Start(start),
            KeeperCommand::Kill { exec: "e1".to_owned(), grace_ms: 5 },
            KeeperCommand::Forget { exec: "e1".to_owned() },
            KeeperCommand::RuntimeLine(b"{}".to_vec()),
            KeeperCommand::End { grace_ms: 1 },
            KeeperCommand::Ping { token: 9 },
        ]
    }

    fn events() -> Vec<KeeperEvent> {
        let record = ExitRecord {
            ended: ExitOutcome::Code(3),
            started_ms: 1,
            finished_ms: 2,
            stdout: StreamCount::default(),
            stderr: StreamCount::default(),
            usage: ResourceUsage::default(),
            note: String::new(),
            cause: None,
        };
        // Ids from which another kind would be derived.
        let exec = || "job_1".to_owned();
        vec![
            KeeperEvent::Started { exec: exec(), kind: ExecKind::Runtime, pid: 2 },
            KeeperEvent::Exited { exec: exec(), kind: ExecKind::Tool, record },
            KeeperEvent::Refused { exec: exec(), kind: ExecKind::Tool, why: "no".to_owned(), recorded: true },
            KeeperEvent::Lost { exec: exec(), kind: ExecKind::Tool },
            KeeperEvent::RuntimeLine(b"{}".to_vec()),
            KeeperEvent::Pong { token: 9 },
            KeeperEvent::Output { exec: "e1".to_owned(), kind: ExecKind::Job, stdout: 3, stderr: 4 },
        ]
    }

    #[test]
    fn commands_and_events_come_back_however_the_stream_is_cut() {
        let mut stream = Vec::new();
        commands().iter().for_each(|command| command.append_to(&mut stream));
        let commands_end = stream.len();
        events().iter().for_each(|event| event.append_to(&mut stream));
        for step in [1, 2, 3, 7, stream.len()] {
            let (mut assembler, mut got_commands, mut got_events) = (Assembler::default(), vec![], vec![]);
            for chunk in stream[..commands_end].chunks(step) {
                assembler.push(chunk);
                while let Some(frame) = assembler.next_frame(1024).unwrap() {
                    got_commands.push(KeeperCommand::decode(frame).unwrap().unwrap());
                }
            }
            for chunk in stream[commands_end..].chunks(step) {
                assembler.push(chunk);
                while let Some(frame) = assembler.next_frame(1024).unwrap() {
                    got_events.push(KeeperEvent::decode(frame).unwrap().unwrap());
                }
            }
            assert_eq!((got_commands, got_events), (commands(), events()));
        }
    }

    /// The events about an exec, each with the kind as its last byte.
    fn exec_events() -> Vec<(KeeperEvent, (u8, Vec<u8>))> {
        let is_about_exec =
            |event: &KeeperEvent| !matches!(event, KeeperEvent::RuntimeLine(_) | KeeperEvent::Pong { .. });
        let events = events().into_iter().filter(is_about_exec);
        let encoded = events.map(|event| {
            let mut bytes = Vec::new();
            event.append_to(&mut bytes);
            (event, (bytes[LEN_BYTES], bytes[LEN_BYTES + 1..].to_vec()))
        });
        encoded.collect()
    }

    #[test]
    fn the_kind_of_an_event_of_an_earlier_keeper_is_derived_from_the_id() {
        for (event, (kind, payload)) in exec_events() {
            let earlier = RawFrame { kind, payload: &payload[..payload.len() - 1] };
            let (derived, decoded) = match KeeperEvent::decode(earlier).unwrap().unwrap() {
                KeeperEvent::Started { exec, kind, .. }
                | KeeperEvent::Exited { exec, kind, .. }
                | KeeperEvent::Refused { exec, kind, .. }
                | KeeperEvent::Lost { exec, kind }
                | KeeperEvent::Output { exec, kind, .. } => (ExecKind::of_id(&exec), kind),
                KeeperEvent::RuntimeLine(_) | KeeperEvent::Pong { .. } => panic!("{event:?}"),
            };
            assert_eq!(derived, decoded, "{event:?}");
        }
    }

    #[test]
    fn an_event_about_a_kind_that_a_later_keeper_knows_is_skipped() {
        for (event, (kind, mut payload)) in exec_events() {
            *payload.last_mut().unwrap() = 200;
            assert_eq!(KeeperEvent::decode(RawFrame { kind, payload: &payload }), Ok(None), "{event:?}");
        }
    }

    #[test]
    fn unknown_frames_are_skipped_and_unknown_fields_ignored() {
        let mut stream = Vec::new();
        append(&mut stream, 200, |put| {
            put.u64(1);
        });
        append(&mut stream, kind::PING, |put| {
            put.u64(9).text("added later");
        });
        let mut assembler = Assembler::default();
        assembler.push(&stream);
        let unknown = KeeperCommand::decode(assembler.next_frame(64).unwrap().unwrap());
        assert_eq!(unknown, Ok(None));
        let ping = KeeperCommand::decode(assembler.next_frame(64).unwrap().unwrap());
        assert_eq!(ping, Ok(Some(KeeperCommand::Ping { token: 9 })));
    }

    #[test]
    fn a_frame_beyond_its_limit_is_refused_before_it_is_read() {
        let mut assembler = Assembler::default();
        assembler.push(&2000u32.to_le_bytes());
        assert_eq!(assembler.next_frame(1024).unwrap_err(), FrameError { len: 2000, len_max: 1024 });
    }

    #[test]
    fn a_start_of_a_daemon_that_knew_no_jobs_is_one_without_their_fields() {
        let KeeperCommand::Start(start) = commands().remove(1) else { panic!() };
        let mut put = FieldWriter::default();
        start.put(&mut put);
        let fields = [(0, start.clone()), (1, StartExec { keep_free: 0, ..start.clone() })];
        let none = StartExec { job_head: 0, job_segment: 0, keep_free: 0, ..start.clone() };
        for (missing, expected) in fields
            .into_iter()
            .chain([(3, none.clone()), (5, StartExec { timeout_ms: 0, output_max: 0, ..none })])
        {
            let bytes = &put.out[..put.out.len() - missing * size_of::<u64>()];
            assert_eq!(StartExec::take(&mut FieldReader::new(bytes)), Ok(expected), "without {missing}");
            assert!(
                StartExec::take(&mut FieldReader::new(&bytes[..bytes.len() - 1])).is_err(),
                "cut before {missing}"
            );
        }
    }

    #[test]
    fn printing_a_start_tells_nothing_that_people_wrote() {
        let printed = format!("{:?}", commands()[0]);
        assert!(!printed.contains("b=c") && !printed.contains("-c"), "{printed}");
    }
}
