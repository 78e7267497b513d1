//! The API of Lodge: what travels between the daemon and its clients.
//!
//! Owns: the method table, the shapes of parameters, replies and events, the stable error codes, and the one
//! client. Never: behaviour of the daemon, and never a type of `core` (the daemon converts at its edge).

#[macro_use]
mod shape_macros;

mod agents;
mod attach;
pub mod base64;
mod bins;
pub mod client;
mod codes;
mod daemon;
mod dial;
mod events;
pub mod hex;
mod http_answer;
mod images;
mod jobs;
mod lineages;
mod methods;
pub mod post;
mod process;
pub mod proof;
mod providers;
mod quarantine;
mod random;
mod rpc;
mod sandboxes;
mod sessions;
mod snapshot;
pub mod state_dir;
pub mod tls;
mod tokens;
pub mod transfer;
mod turns;
pub mod visible;

pub use agents::*;
pub use attach::*;
pub use bins::*;
pub use codes::{CODES, CodeDoc, CodeScope, KnownCode, call_codes, http_status};
pub use daemon::*;
pub use events::{Delta, Event, Gap, Output};
pub use images::*;
pub use jobs::*;
pub use lineages::*;
pub use lodge_events as event;
pub use lodge_events::{EventBody, EventKind};
pub use methods::*;
pub use providers::*;
pub use quarantine::*;
pub use random::random_bytes;
pub use rpc::{
    ErrorBody, ErrorData, Message, Notification, Request, Response, notification_text, result_text, rpc_code,
};
pub use sandboxes::*;
pub use sessions::*;
pub use snapshot::*;
pub use tokens::*;
pub use turns::*;

/// The largest request body or WebSocket message that the daemon reads.
pub const REQUEST_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The longest message to an agent.
pub const MESSAGE_BYTES_MAX: usize = 1024 * 1024;
/// The largest page that a listing returns.
pub const PAGE_MAX: u32 = 500;
