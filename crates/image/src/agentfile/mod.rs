//! The Agentfile language: parse, merge over a parent, and load with the files it names.
//!
//! Owns: the grammar, its bounds, its error messages, and how parents are flattened. Never: knows which images there
//! are, starts programs or decides whether an agent may run.
//!
//! # Repeated instructions
//! Within one file the last `RUNTIME`, `MODEL`, `NAME` and `EXEC` wins, and so does the last `CONTEXT`, `CONFIG`,
//! `ENV`, `BIN`, `ADD`, `LABEL` and `ARG` with the same name. `CAPABILITY` and `SKILL` form a union;
//! `SCHEDULE` and `ON` add up. A second `FROM`, `SHELL` or `NETWORK`, or a second `LIMIT`, `MCP` or `SERVICE` with the
//! same name, is refused: silently dropping one of them would change what the agent may do.

mod bounds;
mod builtin;
mod capability;
mod cursor;
mod directives;
mod document;
mod env_key;
mod error;
mod expand;
mod extensions;
mod keyword;
mod lex;
mod limit;
mod load;
mod merge;
mod mistake;
pub(crate) mod names;
mod parse;
mod rules;
mod tools;

pub use bounds::{
    ADD_MAX, CONTEXT_MAX, ERRORS_MAX, EXPANSION_MAX, FILE_MAX, HEREDOC_MAX, HEREDOCS_MAX, INSTRUCTIONS_MAX,
    LINE_MAX, LINES_MAX, LOAD_TOTAL_MAX, PARENTS_MAX, WORDS_MAX,
};
pub(crate) use builtin::BUILTIN_PREFIX;
pub use builtin::{BUILTINS, Builtin, builtin};
pub use capability::CAPABILITIES;
pub use document::{
    Add, Agentfile, Arg, Bin, BinSource, Config, ConfigValue, ContextSection, ContextSource, Env, Label,
    Located, Mcp, McpSource, ModelName, NetworkAccess, On, Parent, SHELL_NAME, Schedule, Service,
    ServiceNeed, ShellKind,
};
pub use env_key::{EnvKeyError, check_env_key};
pub use error::{AgentfileError, AgentfileErrors, shown};
pub use keyword::{Keyword, nearest};
pub use limit::{Limit, LimitKey, RevivalPolicy, read_duration, read_limit, read_size};
pub use load::{
    AddedFile, Builder, ContextText, LoadError, LoadedAgentfile, PackedFiles, load_dir, load_inline,
    load_packed,
};
pub use merge::merge;
pub use mistake::{
    BoundMistake, FileMistake, FormMistake, Mistake, NameOf, PathFault, TextMistake, ValueMistake,
};
pub use names::is_tool_name;
pub use parse::{parse, tool_lines};
pub(crate) use rules::check;
pub use rules::{UnfitEntry, read_network};
