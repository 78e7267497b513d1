//! Every bound that a decision enforces, in one place.

/// The longest message a person may send in one turn.
pub const MESSAGE_BYTES_MAX: usize = 1024 * 1024;
/// Turns that may wait in one session behind the one that runs.
pub const SESSION_QUEUE_MAX: usize = 64;
/// The largest fork of a session: with it a commit stays within the write-ahead log's bound.
pub const FORK_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Turns that one change of a session may copy or restore.
pub const PATH_TURNS_MAX: usize = 20_000;
/// Turns that may be queued or running in the whole daemon.
pub const LIVE_TURNS_MAX: usize = 4_096;
/// Requests that wait for agents which are read from the store.
pub const LOOKUPS_MAX: usize = 1_024;
/// Turns that one agent runs at the same time, each of another session; others wait.
pub const AGENT_TURNS_MAX: usize = 256;
/// Sessions without a live turn in memory; others are read from the store when they are named.
pub const IDLE_SESSIONS_MAX: usize = 4_096;
/// Arguments of one tool call.
pub const EXEC_ARGS_MAX: usize = 4_096;
/// The longest timeout of a job.
pub const JOB_TIMEOUT_MS_MAX: u64 = 365 * 24 * 60 * 60 * 1_000;
/// Jobs of one agent that may wait.
pub const AGENT_JOBS_PENDING_MAX: usize = 2_048;
/// Jobs that may wait in the whole daemon.
pub const JOBS_PENDING_MAX: usize = 8_192;
/// Jobs of one agent that may wait although the queue of the daemon is full.
pub const AGENT_JOBS_PENDING_OWN: usize = 16;
/// Extra slots, as a multiple of `max-jobs`: one for each agent that has no running job while all slots are taken.
pub const JOB_EXTRA_SLOTS: usize = 1;
/// Jobs that may have ended without being archived. At this number no job starts.
pub const JOBS_UNARCHIVED_MAX: usize = 1_024;
/// All arguments of one job together.
pub const JOB_ARGS_BYTES_MAX: usize = 64 * 1024;
/// The largest stdin of a job.
pub const JOB_STDIN_BYTES_MAX: usize = 1024 * 1024;
/// The lowest and the highest priority of a job.
pub const JOB_PRIORITY_MIN: i32 = -100;
pub const JOB_PRIORITY_MAX: i32 = 100;
/// The smallest and the largest amount of output per stream that a request may keep.
pub const JOB_OUTPUT_BYTES_MIN: u64 = 4 * 1024;
pub const JOB_OUTPUT_BYTES_MAX: u64 = 16 * 1024 * 1024 * 1024;
/// The part of its agent's `LIMIT disk` that is kept of each stream of a job: one in this many.
pub const JOB_OUTPUT_DISK_SHARE: u64 = 8;
/// The shortest interval between two output events of a running job.
pub const JOB_OUTPUT_EVERY_MS: i64 = 1_000;
/// Labels of one job, and the longest key and value of one.
pub const JOB_LABELS_MAX: usize = 32;
pub const LABEL_KEY_BYTES_MAX: usize = 63;
pub const LABEL_VALUE_CHARS_MAX: usize = 256;
/// Ended jobs that stay in memory until they are reported to their sessions. Beyond this number the oldest are not
/// reported.
pub const JOBS_UNTOLD_MAX: usize = 4_096;
/// Jobs that a note before a turn lists. The others are counted.
pub const NOTE_JOBS_MAX: usize = 20;
/// Standalone sandboxes that are not stopped, failed or deleted.
pub const LIVE_SANDBOXES_MAX: usize = 4_096;
/// Execs that run in one standalone sandbox.
pub const SANDBOX_EXECS_MAX: usize = 256;
/// Output of one stream of an exec that is kept.
pub const EXEC_OUTPUT_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// Tokens that are neither revoked nor expired.
pub const LIVE_TOKENS_MAX: usize = 1_024;
/// Names of images.
pub const IMAGE_REFS_MAX: usize = 65_536;
/// The longest name of a token.
pub const TOKEN_NAME_BYTES_MAX: usize = 128;
/// The longest agent name; names become file and host names.
pub const NAME_BYTES_MAX: usize = 63;
/// Tool output that goes into the conversation: this much from the start …
pub const RESULT_HEAD_BYTES: usize = 48 * 1024;
/// … and this much from the end.
pub const RESULT_TAIL_BYTES: usize = 16 * 1024;
/// Output of one stream of a tool call that is kept on disk.
pub const OUTPUT_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Text shown with an event about a tool's result.
pub const PREVIEW_BYTES_MAX: usize = 512;
/// Answers in memory although they are on disk: more than may wait for the engine, because each waiting request looked
/// for its answer in the store before.
pub const RECENT_REQUESTS_MAX: usize = 1_100;
/// How long a `request_id` identifies one change with one answer.
pub const REQUEST_MEMORY_MS: i64 = 24 * 60 * 60 * 1_000;
/// Attempts of a model call that the daemon itself cannot make, before its turn fails. See `retry-for` for failures of a
/// provider.
pub const MODEL_ATTEMPTS_MAX: u32 = 4;
/// Answers that may mismatch a schema before their turn fails.
pub const MISFITS_MAX: usize = 3;
/// Revivals in a row without a finished turn or a long life; then the lineage ends.
pub const REVIVALS_MAX: u32 = 5;
/// A process that lived this long died for its own reason: the count of deaths starts over.
pub const LIVED_WELL_MS: i64 = 10 * 60 * 1_000;

/// Processes and threads of a sandbox without a configured limit.
pub const PIDS_DEFAULT: u64 = 1024;
/// The part of the machine's memory that a sandbox may use without a configured limit: one in this many.
pub const MEMORY_SHARE_DEFAULT: u64 = 2;
/// The part of the free disk space at its start that a sandbox may fill without a configured limit: one in this many.
pub const DISK_SHARE_DEFAULT: u64 = 2;
/// Most files of tool output that are kept for an agent.
pub const KEPT_FILES_MAX: usize = 64;
/// Most bytes of tool output that are kept for an agent, and the part of its disk that this may be: one in this many.
pub const KEPT_BYTES_MAX: u64 = 256 * 1024 * 1024;
pub const KEPT_SHARE: u64 = 4;

/// A limit of time in words.
pub fn span(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        120_000.. if ms.is_multiple_of(60_000) => format!("{} min", ms / 60_000),
        1_000.. if ms.is_multiple_of(1_000) => format!("{} s", ms / 1_000),
        1_000.. => format!("{:.1} s", ms as f64 / 1_000.0),
    }
}
