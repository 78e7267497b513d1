//! Every limit of the link, by name.

/// Longest id of a sandbox or an exec, in bytes.
pub const ID_MAX: usize = 64;
/// Longest frame between a proven daemon and its keeper, in bytes after the length.
pub const FRAME_MAX: usize = RUNTIME_LINE_MAX + 64 * 1024;
/// Longest frame before the peer has proved itself.
pub const STRANGER_FRAME_MAX: usize = 1024;
/// Longest line a runtime may write or be sent, without its newline.
pub const RUNTIME_LINE_MAX: usize = 16 * 1024 * 1024;
/// Longest exit record.
pub const RECORD_MAX: usize = 8 * 1024;
/// Longest reason or note, in bytes; longer ones are cut.
pub const TEXT_MAX: usize = 2 * 1024;
/// Longest list of guardians, in bytes.
pub const GUARDIANS_MAX: usize = 64 * 1024;
/// Longest file of marks that record the order of a job's streams.
pub const ORDER_BYTES_MAX: usize = 1024 * 1024;
/// Longest spec of a keeper.
pub const SPEC_MAX: usize = 1024 * 1024;
/// Most execs listed in a welcome; the rest is found by their directories.
pub const WELCOME_EXECS_MAX: usize = 10_000;
/// Most elements of any list in a frame.
pub const LIST_MAX: usize = 64 * 1024;
