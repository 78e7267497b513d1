//! Names for the ids in a listing. Removed agents keep their names.

use std::collections::HashMap;

use lodge_proto::{AgentRef, GetAgent};

use crate::failure::{CommandExit, CommandFailure};
use crate::follow::DaemonClient;

/// The names that were looked up so far.
#[derive(Debug, Default)]
pub(super) struct AgentNames {
    known: HashMap<String, String>,
}

impl AgentNames {
    /// Remembers a name that another reply contained.
    pub(super) fn remember(&mut self, agent: &str, name: &str) {
        self.known.insert(agent.to_owned(), name.to_owned());
    }

    /// The name of an agent; what has none is called by its id.
    pub(super) async fn of(
        &mut self,
        daemon: &mut DaemonClient<'_>,
        agent: &str,
    ) -> Result<String, CommandFailure> {
        if let Some(name) = self.known.get(agent) {
            return Ok(name.clone());
        }
        if !agent.starts_with("agt_") {
            return Ok(agent.to_owned());
        }
        let given = AgentRef { agent: agent.to_owned(), request_id: None };
        let name = match daemon.call_without_start::<GetAgent>(given).await {
            Ok(detail) => detail.agent.name,
            // Without the right to read names, the rest is still shown.
            Err(failure) if failure.exit() == CommandExit::Refused => agent.to_owned(),
            Err(failure) => return Err(failure),
        };
        self.remember(agent, &name);
        Ok(name)
    }
}
