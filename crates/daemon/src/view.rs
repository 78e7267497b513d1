//! From what is recorded to what clients see: the only code that knows both shapes, one file per aggregate.

mod agents;
mod answers;
mod bins;
mod errors;
mod images;
mod jobs;
mod quarantine;
mod sandboxes;
mod sessions;
mod tokens;
mod turns;

use lodge_core::record::EventRow;
use lodge_core::{AgentId, Timestamp};
use lodge_proto::{Event, HttpView, LayerView};
use serde::Serialize;
use serde_json::{Map, Value};

pub use self::agents::{LiveSandbox, agent, agent_waits, lineage, mount, tools};
pub use self::answers::{EngineReply, answer_view, image_not_found, no_image, rendered, text};
pub use self::bins::{bin, bin_detail, new_bin};
pub(crate) use self::errors::{client_errors, error_body};
pub use self::errors::{for_model, refused};
pub use self::images::{agentfile, capability, image, image_detail};
pub use self::jobs::{job, no_job};
pub use self::quarantine::quarantined;
pub use self::sandboxes::{exec, sandbox};
pub use self::sessions::{epoch, exported, hit, message, no_session, other_agent, session, session_exists};
pub use self::tokens::token;
pub use self::turns::{full_turn, turn, usage};
use crate::shell::Http;

/// The TCP listener, and the fingerprint of its certificate.
pub fn http(http: &Http, certificate: Option<String>) -> HttpView {
    let (state, addr, reason) = match http {
        Http::Off => ("off", None, None),
        Http::Listening { addr, .. } => ("listening", Some(addr), None),
        Http::Taken { addr, reason } => ("taken", Some(addr), Some(reason)),
        Http::NoCertificate { addr, reason, .. } => ("no_certificate", Some(addr), Some(reason)),
    };
    let (addr, reason) = (addr.cloned(), reason.cloned());
    HttpView { state: state.to_owned(), addr, url: http.url(), certificate, reason }
}

/// A layer of the fence as clients see it. Of one that has two ways it says which.
pub fn layer(layer: lodge_exec::Layer) -> LayerView {
    let in_force = layer.missing.is_none();
    let way = match layer.name.as_str() {
        "kill" => Some("by cgroup.kill".to_owned()),
        "limit_memory" | "limit_pids" | "limit_cpu_time" => Some("by cgroup".to_owned()),
        _other => None,
    };
    let way = way.filter(|_| in_force);
    LayerView { name: layer.name, in_force, why: layer.missing.or(way) }
}

/// A shape as JSON. The shapes of the API have string keys and finite numbers, so this cannot fail.
pub fn json<T: Serialize>(shape: &T) -> Value {
    serde_json::to_value(shape).unwrap_or(Value::Null)
}

pub fn event(row: &EventRow) -> Event {
    Event {
        seq: row.seq,
        stream: row.stream.clone(),
        stream_seq: row.stream_seq,
        at: at(row.at),
        kind: row.body.kind().word().to_owned(),
        data: event_data(row),
    }
}

fn at(time: Timestamp) -> String {
    time.to_string()
}

/// The fields of an event, with the agent whose stream it is in.
fn event_data(row: &EventRow) -> Map<String, Value> {
    let mut data = row.body.data();
    let is_agents = row.stream.strip_prefix(AgentId::PREFIX).is_some_and(|rest| rest.starts_with('_'));
    if is_agents {
        data.insert("agent".to_owned(), Value::from(row.stream.as_str()));
    }
    data
}
