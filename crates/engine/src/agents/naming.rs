//! Names of new agents.

use lodge_core::limits::NAME_BYTES_MAX;

use super::refusal::AgentRefusal;
use crate::{Engine, NameChoice, Refusal};

impl Engine {
    pub(crate) fn choose_name(&self, choice: NameChoice) -> Result<String, Refusal> {
        match choice {
            NameChoice::Exactly(name) => {
                check_name(&name)?;
                if self.names.contains(name.as_str()) {
                    return Err(AgentRefusal::NameTaken { name }.into());
                }
                Ok(name)
            }
            NameChoice::Like(name) => {
                check_name(&name)?;
                let taken = |name: &str| self.names.contains(name);
                let next = (2..).map(|n: u32| format!("{name}-{n}")).find(|name| !taken(name));
                Ok(if taken(&name) { next.unwrap_or(name) } else { name })
            }
        }
    }
}

fn check_name(name: &str) -> Result<(), AgentRefusal> {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        && name.as_bytes()[0].is_ascii_alphanumeric()
        && !name.starts_with("agt_");
    if fits {
        return Ok(());
    }
    Err(AgentRefusal::BadName { name: name.to_owned() })
}
