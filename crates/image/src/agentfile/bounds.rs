//! The limits for an Agentfile and its files.
//!
//! Owns: the numbers. Never: enforces them; that is done where the bytes are read.

/// Bytes of an Agentfile.
pub const FILE_MAX: usize = 1 << 20;
/// Lines of an Agentfile, heredoc bodies included.
pub const LINES_MAX: usize = 32_768;
/// Bytes of one instruction line, before and after `${…}` is replaced.
pub const LINE_MAX: usize = 64 << 10;
/// Words of one instruction line.
pub const WORDS_MAX: usize = 1_024;
/// Instructions in an Agentfile.
pub const INSTRUCTIONS_MAX: usize = 4_096;
/// Heredocs in an Agentfile.
pub const HEREDOCS_MAX: usize = 512;
/// Bytes of one heredoc body.
pub const HEREDOC_MAX: usize = 512 << 10;
/// Bytes of all lines in which `${…}` was replaced, together.
pub const EXPANSION_MAX: usize = 1 << 20;
/// Mistakes reported for one Agentfile before the rest of it is left unread.
pub const ERRORS_MAX: usize = 100;
/// Bytes of one `file://` CONTEXT.
pub const CONTEXT_MAX: u64 = 1 << 20;
/// Bytes of one ADD file.
pub const ADD_MAX: u64 = 16 << 20;
/// Bytes of all CONTEXT and ADD files together.
pub const LOAD_TOTAL_MAX: u64 = 64 << 20;
/// Longest chain of `FROM` parents.
pub const PARENTS_MAX: usize = 10;
