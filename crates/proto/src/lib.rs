//! The API of Lodge: what travels between the daemon and its clients.
//!
//! Owns: the method table, the shapes of parameters, replies and events, the stable error codes, and the one
//! client. Never: behaviour of the daemon, and never a type of `core` (the daemon converts at its edge).

pub mod base64;
mod bins;
pub mod client;
mod codes;
mod dial;
mod events;
mod images;
mod jobs;
mod methods;
pub mod post;
mod process;
pub mod proof;
mod quarantine;
mod rpc;
mod sessions;
mod shapes;
mod snapshot;
pub mod state_dir;
pub mod tls;
mod tokens;
pub mod transfer;
pub mod visible;

pub use bins::*;
pub use codes::{CODES, CodeDoc, http_status};
pub use events::{Delta, EVENT_KINDS, Event, Gap, Output};
pub use images::*;
pub use jobs::*;
pub use methods::{METHODS, MethodDoc, discover};
pub use quarantine::*;
pub use rpc::{ErrorBody, ErrorData, Message, Notification, Request, Response, rpc_code};
pub use sessions::*;
pub use shapes::*;
pub use snapshot::*;
pub use tokens::*;

/// The largest request body or WebSocket message that the daemon reads.
pub const REQUEST_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The largest page that a listing returns.
pub const PAGE_MAX: u32 = 500;
