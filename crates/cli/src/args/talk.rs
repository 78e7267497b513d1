//! `prompt`, `chat` and `session`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Which conversation a prompt belongs to.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ConversationArgs {
    /// The session: an id, or any unique prefix of a generated one (ses_…); a new id creates a session
    #[arg(short, long)]
    pub session: Option<String>,
    /// The sender; each sender has one session per agent
    #[arg(long, conflicts_with = "session")]
    pub sender: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  git diff | lodge prompt coder \"review this\"      # a pipe is sent with the text\n  lodge prompt coder \"summarise\" - <notes.md      # a file only with `-`\n  lodge prompt coder \"hello\" </dev/null           # the text alone, whatever stdin is"
)]
pub(crate) struct PromptArgs {
    /// An agent's name or id, or any unique prefix of the id
    pub agent: String,
    /// The prompt; - or no text reads it from stdin. A text with - after it is sent with stdin, as is a text with a pipe
    pub text: Vec<String>,
    #[command(flatten)]
    pub voice: ConversationArgs,
    /// A file with a JSON schema; the answer is JSON that matches it, or the turn fails
    #[arg(long, value_name = "FILE")]
    pub schema: Option<PathBuf>,
    /// Do not wait for the answer; print the turn's id
    #[arg(short, long)]
    pub detach: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    /// An agent's name or id, or any unique prefix of the id
    pub agent: String,
    /// The session; a new id creates one. Default: a new session
    #[arg(short, long)]
    pub session: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SessionCommand {
    /// List sessions, most recently used first
    Ls {
        /// Show only this agent; it may be removed
        #[arg(long)]
        agent: Option<String>,
        /// Show at most N; default: all
        #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        limit: Option<u32>,
    },
    /// Print a conversation
    Show {
        /// A session's id, or any unique prefix
        session: String,
        /// Show only the newest N messages
        #[arg(short = 'n', long, value_name = "N")]
        messages: Option<u32>,
        /// Include turns that are not on its path, such as other answers and rewound turns
        #[arg(short, long)]
        all: bool,
        /// Show all output of tools, not only the first 20 lines
        #[arg(long)]
        full: bool,
    },
    /// Find messages by their text
    Search(SearchArgs),
    /// Print the session and all its messages as JSON Lines
    Export {
        /// A session's id, or any unique prefix
        session: String,
    },
    /// Create a new session that starts with the turns of this one
    Fork {
        /// A session's id, or any unique prefix
        session: String,
        /// The last turn to copy, by number or id; default: all turns
        #[arg(long, value_name = "TURN")]
        at: Option<String>,
        /// The new session's id; default: a new id
        #[arg(long = "as", value_name = "ID")]
        to: Option<String>,
    },
    /// Go back to a turn; later turns are kept as a branch
    Rewind {
        /// A session's id, or any unique prefix
        session: String,
        /// A turn's number or id; 0 is before the first
        turn: String,
    },
    /// Send the same message again; the old answer is kept as a branch
    Regenerate {
        /// A session's id, or any unique prefix
        session: String,
        /// A turn's number or id; default: the last turn
        turn: Option<String>,
        /// Do not wait for the answer; print the turn's id
        #[arg(short, long)]
        detach: bool,
        /// Do not ask before tools that are not declared safe may run again
        #[arg(short, long)]
        yes: bool,
    },
    /// Make the branch of a turn the path again
    Activate {
        /// A session's id, or any unique prefix
        session: String,
        /// The id of a turn that `session show --all` shows
        turn: String,
    },
    /// Delete sessions and all their messages
    Rm {
        /// Ids of sessions; a generated id (ses_…) may be given by any unique prefix
        #[arg(required = true, value_name = "SESSION")]
        sessions: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct SearchArgs {
    /// Words that must all occur; use quotation marks for a "phrase" and word* for a prefix
    #[arg(required = true)]
    pub query: Vec<String>,
    /// Show only this agent; it may be removed
    #[arg(long)]
    pub agent: Option<String>,
    /// Search only this session
    #[arg(short, long)]
    pub session: Option<String>,
    /// Show only the newest N hits
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}
