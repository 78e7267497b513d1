//! Room on the disk: how much is left, the reserve, and what is refused without them.
//!
//! Three levels. With enough space everything is accepted. At the low level no new work starts, and running work is
//! still recorded; the reserve is released for that when a commit needs it. When even that fails, the daemon is
//! read-only until space is free again. Space is checked only with activity, except by a read-only daemon, once a
//! second.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lodge_core::Timestamp;
use lodge_core::lineage::Policy;
use lodge_proto::StorageView;
use rustix::fs::FallocateFlags;

use lodge_engine::{
    AgentCommand, Command, ImageCommand, JobCommand, Refusal, Release, SandboxCommand, SessionOperation,
    TurnCommand, WorkCommand,
};

/// Taken from the file system while there is room, so that outcomes can be recorded when there is none.
pub const RESERVE_BYTES: u64 = 4 << 20;
/// Below this nothing new is begun.
pub const LOW_BYTES: u64 = 16 << 20;
/// A read-only daemon continues when this much is free beside a new reserve.
const REOPEN_BYTES: u64 = 1 << 20;
/// How old the answer to "how much is free" may be.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const NAME: &str = "reserve";
/// Blocks are counted in these.
const BLOCK_BYTES: u64 = 512;

/// What a request needs of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskNeed {
    /// It begins something that will write more.
    Room,
    /// It ends something or only records: possible as long as anything can be written.
    Record,
}

/// Why the disk has too little space for a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RoomRefusal {
    /// Nothing can be recorded.
    #[error("{}", Refusal::NotRecorded)]
    ReadOnly,
    #[error("the store cannot be reached: this was not done")]
    Away,
    #[error("the disk is nearly full: no new work is started")]
    Low { dir: PathBuf, free: u64, needed: u64 },
    #[error("there is too little room on the disk for the output of another job")]
    JobOutput { dir: PathBuf, free: u64, keep_free: u64 },
}

impl RoomRefusal {
    /// Stable, documented, never reused.
    pub fn code(&self) -> &'static str {
        match self {
            RoomRefusal::ReadOnly => Refusal::NotRecorded.code(),
            RoomRefusal::Away => "daemon.store_away",
            RoomRefusal::Low { .. } => "daemon.disk_full",
            RoomRefusal::JobOutput { .. } => "job.disk_low",
        }
    }

    /// How much room there is.
    pub fn cause(&self) -> Option<String> {
        match self {
            RoomRefusal::ReadOnly => Refusal::NotRecorded.cause().map(str::to_owned),
            RoomRefusal::Away => None,
            RoomRefusal::Low { dir, free, needed } => Some(format!(
                "{} free on the file system of {}; {} are needed",
                bytes(*free),
                dir.display(),
                bytes(*needed)
            )),
            RoomRefusal::JobOutput { dir, free, keep_free } => Some(format!(
                "{} free on the file system of {}; below {} (`job-keep-free`) no job is taken",
                bytes(*free),
                dir.display(),
                bytes(*keep_free)
            )),
        }
    }

    /// What to do next.
    pub fn hint(&self) -> Option<String> {
        match self {
            RoomRefusal::ReadOnly => Refusal::NotRecorded.hint(),
            RoomRefusal::Away => Some(
                "the daemon tries again several times a second; try again when the store is back".to_owned(),
            ),
            RoomRefusal::Low { .. } => Some(
                "free space there, or remove an agent with its files (`lodge rm`), then try again; running work continues".to_owned(),
            ),
            RoomRefusal::JobOutput { .. } => {
                Some("free space there, or lower `job-keep-free`; running jobs continue".to_owned())
            }
        }
    }
}

impl DiskNeed {
    pub fn of(command: &Command) -> DiskNeed {
        match command {
            Command::Agent(
                AgentCommand::Create(_)
                | AgentCommand::Start { .. }
                | AgentCommand::Restart { .. }
                | AgentCommand::Update(_),
            )
            | Command::Image(ImageCommand::Add(_) | ImageCommand::AddNew(_))
            | Command::Turn(TurnCommand::Send(_))
            | Command::Sandbox(
                SandboxCommand::Create(_) | SandboxCommand::Resume { .. } | SandboxCommand::RunExec(_),
            )
            | Command::Job(JobCommand::Submit(_)) => DiskNeed::Room,
            Command::Session(change) => match change.what {
                SessionOperation::Fork { .. }
                | SessionOperation::Regenerate(_)
                | SessionOperation::Retry(_) => DiskNeed::Room,
                SessionOperation::Rewind(_)
                | SessionOperation::Activate { .. }
                | SessionOperation::Delete => DiskNeed::Record,
            },
            Command::Agent(AgentCommand::SettleLineage(settlement)) => match settlement.policy {
                Policy::Revive | Policy::Ask => DiskNeed::Room,
                Policy::Reap => DiskNeed::Record,
            },
            Command::Work(WorkCommand::Release { how, .. }) => match how {
                Release::Retry => DiskNeed::Room,
                Release::Drop => DiskNeed::Record,
            },
            Command::Agent(
                AgentCommand::Stop { .. } | AgentCommand::Kill { .. } | AgentCommand::Remove { .. },
            )
            | Command::Turn(TurnCommand::Interrupt { .. })
            | Command::Sandbox(
                SandboxCommand::Stop { .. }
                | SandboxCommand::Remove { .. }
                | SandboxCommand::CancelExec { .. },
            )
            | Command::Job(JobCommand::Cancel { .. })
            | Command::Image(ImageCommand::Tag { .. } | ImageCommand::Remove { .. })
            | Command::Token(_)
            | Command::Again { .. }
            | Command::Reloaded { .. }
            | Command::Keep { .. } => DiskNeed::Record,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DiskLevel {
    Enough,
    Low,
    ReadOnly,
    /// The store cannot be reached.
    Away,
}

impl DiskLevel {
    /// Whether the file system decides on the level. If not, the writer says when it ends.
    fn follows_room(self) -> bool {
        match self {
            DiskLevel::Enough | DiskLevel::Low => true,
            DiskLevel::ReadOnly | DiskLevel::Away => false,
        }
    }

    fn word(self) -> &'static str {
        match self {
            DiskLevel::Enough => "enough",
            DiskLevel::Low => "low",
            DiskLevel::ReadOnly => "read_only",
            DiskLevel::Away => "away",
        }
    }
}

#[derive(Debug)]
pub struct Room {
    dir: PathBuf,
    state: Mutex<RoomState>,
}

#[derive(Debug)]
struct RoomState {
    level: DiskLevel,
    /// Since when it is not [`DiskLevel::Enough`].
    since: Option<Timestamp>,
    has_reserve: bool,
    looked: Option<Instant>,
    reopened: Option<Instant>,
    /// How often in a row it closed again soon after it was reopened.
    in_vain: u32,
}

impl Room {
    /// Looks at what is there and changes nothing.
    pub fn of(dir: &Path) -> Room {
        let has_reserve = dir.join(NAME).metadata().is_ok_and(|meta| is_whole(&meta));
        let state = RoomState {
            level: DiskLevel::Enough,
            since: None,
            has_reserve,
            looked: None,
            reopened: None,
            in_vain: 0,
        };
        Room { dir: dir.to_owned(), state: Mutex::new(state) }
    }

    /// Does something that writes; when it fails for lack of room, once more with the reserve given back. When that is
    /// not enough either, the reserve is taken again, for the next attempt.
    pub fn with_reserve<T, E>(
        &self,
        is_full: impl Fn(&E) -> bool,
        mut work: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        match work() {
            Err(error) if is_full(&error) && self.give_back() => {
                let done = work();
                if done.is_err() {
                    self.state().has_reserve = self.make_reserve().is_ok();
                }
                done
            }
            done => done,
        }
    }

    /// Refuses what the disk has no room for.
    pub fn admit(&self, needs: DiskNeed, now: Timestamp) -> Result<(), RoomRefusal> {
        let mut state = self.state();
        match (needs, state.level) {
            (DiskNeed::Room | DiskNeed::Record, DiskLevel::ReadOnly) => Err(RoomRefusal::ReadOnly),
            (DiskNeed::Room | DiskNeed::Record, DiskLevel::Away) => Err(RoomRefusal::Away),
            (DiskNeed::Record, DiskLevel::Enough | DiskLevel::Low) => Ok(()),
            (DiskNeed::Room, DiskLevel::Enough | DiskLevel::Low) => {
                self.look(&mut state, now);
                if state.level == DiskLevel::Enough {
                    return Ok(());
                }
                Err(RoomRefusal::Low {
                    dir: self.dir.clone(),
                    free: self.free_bytes(),
                    needed: LOW_BYTES + if state.has_reserve { 0 } else { RESERVE_BYTES },
                })
            }
        }
    }

    /// Refuses a job when less than `keep_free` is free: its output would have no room.
    pub fn admit_job(&self, keep_free: u64) -> Result<(), RoomRefusal> {
        let free = self.free_bytes();
        if free >= keep_free {
            return Ok(());
        }
        Err(RoomRefusal::JobOutput { dir: self.dir.clone(), free, keep_free })
    }

    /// Whether a caller that can wait may write this many bytes, with enough left for those that cannot.
    pub fn spares(&self, bytes: u64) -> bool {
        self.free_bytes() >= LOW_BYTES.saturating_add(bytes)
    }

    /// After a commit: recreates the reserve when it was released and there is space again.
    pub fn tend(&self, now: Timestamp) {
        let mut state = self.state();
        if state.level.follows_room() && (!state.has_reserve || state.level == DiskLevel::Low) {
            self.look(&mut state, now);
        }
    }

    /// Gives the reserve back to the file system. False when there is none.
    pub fn give_back(&self) -> bool {
        let mut state = self.state();
        let given = std::mem::take(&mut state.has_reserve) && self.empty_reserve().is_ok();
        if given {
            // What is free now is for what runs already.
            state.looked = None;
            tracing::warn!(event = "storage.reserve_used", bytes = RESERVE_BYTES);
        }
        given
    }

    /// Nothing can be recorded: everything that would change is refused from now on.
    ///
    /// Returns how often in a row it was reopened in vain: closed again within `soon`.
    pub fn close(&self, soon: Duration, now: Timestamp) -> u32 {
        let mut state = self.state();
        self.enter(&mut state, DiskLevel::ReadOnly, now);
        let is_soon = state.reopened.is_some_and(|at| at.elapsed() < soon);
        state.in_vain = if is_soon { state.in_vain + 1 } else { 0 };
        state.in_vain
    }

    /// The store cannot be reached: everything that would change is refused until [`Room::reopen`].
    pub fn lose_store(&self, now: Timestamp) {
        self.enter(&mut self.state(), DiskLevel::Away, now);
    }

    /// Whether there is room again for a reserve and a little more; then the reserve is there too.
    pub fn has_room_again(&self) -> bool {
        let mut state = self.state();
        if !state.has_reserve && self.free_bytes() >= RESERVE_BYTES + REOPEN_BYTES {
            state.has_reserve = self.make_reserve().is_ok();
        }
        state.has_reserve
    }

    /// Changes are taken again.
    pub fn reopen(&self, now: Timestamp) {
        let mut state = self.state();
        let free = self.free_bytes();
        self.enter(&mut state, if free < LOW_BYTES { DiskLevel::Low } else { DiskLevel::Enough }, now);
        (state.looked, state.reopened) = (None, Some(Instant::now()));
    }

    pub fn view(&self, now: Timestamp) -> StorageView {
        let mut state = self.state();
        if state.level.follows_room() {
            self.look(&mut state, now);
        }
        StorageView {
            state: state.level.word().to_owned(),
            since: state.since.map(|since| since.to_string()),
            free_bytes: self.free_bytes(),
            reserve_bytes: if state.has_reserve { RESERVE_BYTES } else { 0 },
        }
    }

    /// Why nothing can be recorded, while that is so.
    pub fn refusal(&self) -> Option<RoomRefusal> {
        match self.state().level {
            DiskLevel::Enough | DiskLevel::Low => None,
            DiskLevel::ReadOnly => Some(RoomRefusal::ReadOnly),
            DiskLevel::Away => Some(RoomRefusal::Away),
        }
    }

    /// What a person should know of it.
    pub fn warning(&self) -> Option<String> {
        let state = self.state();
        let free = bytes(self.free_bytes());
        match state.level {
            DiskLevel::Enough => None,
            DiskLevel::Low => {
                Some(format!("storage: {free} free; no new work is started until more is free"))
            }
            DiskLevel::ReadOnly => {
                Some(format!("storage: {free} free; nothing can be recorded until there is more"))
            }
            DiskLevel::Away => Some("storage: the store cannot be reached; changes are refused".to_owned()),
        }
    }

    /// Sees whether room is low, unless that was seen just now.
    fn look(&self, state: &mut RoomState, now: Timestamp) {
        if state.looked.is_some_and(|looked| looked.elapsed() < LOOK_EVERY) {
            return;
        }
        state.looked = Some(Instant::now());
        let free = self.free_bytes();
        if !state.has_reserve && free >= LOW_BYTES + RESERVE_BYTES {
            state.has_reserve = self.make_reserve().is_ok();
        }
        // A reserve that cannot be made although there is room is no reason to refuse work.
        let needed = LOW_BYTES + if state.has_reserve { 0 } else { RESERVE_BYTES };
        self.enter(state, if free < needed { DiskLevel::Low } else { DiskLevel::Enough }, now);
    }

    fn enter(&self, state: &mut RoomState, level: DiskLevel, now: Timestamp) {
        if level == state.level {
            return;
        }
        let (was, free_bytes) = (state.level.word(), self.free_bytes());
        match level {
            DiskLevel::Enough => tracing::info!(event = "storage.enough", was, free_bytes),
            DiskLevel::Low => tracing::warn!(event = "storage.low", was, free_bytes),
            DiskLevel::ReadOnly => tracing::error!(event = "storage.read_only", was, free_bytes),
            DiskLevel::Away => tracing::error!(event = "storage.away", was),
        }
        state.since = (level != DiskLevel::Enough).then_some(now);
        state.level = level;
    }

    /// What an ordinary user may still write. A file system that does not report it counts as free until a write fails.
    fn free_bytes(&self) -> u64 {
        rustix::fs::statvfs(&self.dir).map_or(u64::MAX, |stat| stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn make_reserve(&self) -> io::Result<()> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(self.dir.join(NAME))?;
        let taken = take(&file);
        if taken.is_err() {
            // Half a reserve would only be in the way.
            file.set_len(0)?;
        }
        taken
    }

    fn empty_reserve(&self) -> io::Result<()> {
        OpenOptions::new().write(true).open(self.dir.join(NAME))?.set_len(0)
    }

    fn state(&self) -> MutexGuard<'_, RoomState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an error of the kernel means a full disk or an exhausted quota.
pub fn is_full(error: &io::Error) -> bool {
    [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded].contains(&error.kind())
}

/// Takes the reserve's blocks. Where a file system cannot promise them they are written.
fn take(mut file: &File) -> io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, RESERVE_BYTES) {
        Err(rustix::io::Errno::OPNOTSUPP) => {
            let piece = vec![0; 1 << 16];
            (0..RESERVE_BYTES / (1 << 16)).try_for_each(|_| file.write_all(&piece))
        }
        taken => Ok(taken?),
    }
}

fn is_whole(meta: &std::fs::Metadata) -> bool {
    meta.is_file() && meta.len() == RESERVE_BYTES && meta.blocks() * BLOCK_BYTES >= RESERVE_BYTES
}

/// A number of bytes for people.
fn bytes(count: u64) -> String {
    const MIB: u64 = 1 << 20;
    if count >= MIB { format!("{} MiB", count / MIB) } else { format!("{} KiB", count >> 10) }
}

#[cfg(test)]
mod tests;
