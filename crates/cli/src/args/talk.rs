//! `prompt`, `chat` and `session`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Which conversation a prompt belongs to.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ConversationArgs {
    /// The session; a new id creates one
    #[arg(short, long)]
    pub session: Option<String>,
    /// Who asks: each sender has a session with each agent
    #[arg(long, conflicts_with = "session")]
    pub sender: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct PromptArgs {
    /// An id, a name or a unique beginning of an id
    pub agent: String,
    /// What to ask; - or nothing reads it from stdin
    pub text: Vec<String>,
    #[command(flatten)]
    pub voice: ConversationArgs,
    /// A file with a JSON schema: the answer is JSON that fits it, or the turn fails and says why
    #[arg(long, value_name = "FILE")]
    pub schema: Option<PathBuf>,
    /// Do not wait for the answer; print the turn's id
    #[arg(short, long)]
    pub detach: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    /// An id, a name or a unique beginning of an id
    pub agent: String,
    /// The session; a new id creates one, and without one a new session begins
    #[arg(short, long)]
    pub session: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SessionCommand {
    /// List sessions, those that were used last first
    Ls {
        /// Only of this agent, also one that was removed
        #[arg(long)]
        agent: Option<String>,
        /// How many; all when absent
        #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        limit: Option<u32>,
    },
    /// Print a conversation
    Show {
        /// The id of a session
        session: String,
        /// How many of the newest messages
        #[arg(short = 'n', long, value_name = "N")]
        messages: Option<u32>,
        /// Also turns that are not on its path: other answers, and what was rewound
        #[arg(short, long)]
        all: bool,
    },
    /// Find messages by their text
    Search(SearchArgs),
    /// Print everything that was said as JSON Lines: the session, then its messages
    Export {
        /// The id of a session
        session: String,
    },
    /// Make a new session that begins as this one did
    Fork {
        /// The id of a session
        session: String,
        /// The last turn that is copied, by number or id; all of them when absent
        #[arg(long, value_name = "TURN")]
        at: Option<String>,
        /// The new session's id; a new one is made when absent
        #[arg(long = "as", value_name = "ID")]
        to: Option<String>,
    },
    /// Go back to a turn; what came after it is kept as a branch
    Rewind {
        /// The id of a session
        session: String,
        /// By number or id; 0 is before the first
        turn: String,
    },
    /// Ask the same again, and keep the answer that there was as a branch
    Regenerate {
        /// The id of a session
        session: String,
        /// By number or id; the last one when absent
        turn: Option<String>,
        /// Do not wait for the answer; print the turn's id
        #[arg(short, long)]
        detach: bool,
    },
    /// Make the branch of a turn the path again
    Activate {
        /// The id of a session
        session: String,
        /// The id of a turn that `session show --all` shows
        turn: String,
    },
    /// Delete sessions with everything that was said in them
    Rm {
        /// Ids of sessions
        #[arg(required = true, value_name = "SESSION")]
        sessions: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct SearchArgs {
    /// Words that all occur; "a phrase" stands in quotation marks, begin* finds beginnings of words
    #[arg(required = true)]
    pub query: Vec<String>,
    /// Only of this agent, also one that was removed
    #[arg(long)]
    pub agent: Option<String>,
    /// Only in this session
    #[arg(short, long)]
    pub session: Option<String>,
    /// How many of the newest hits
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}
