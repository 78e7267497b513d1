//! What a new agent is called and which user its sandbox has.

use lodge_core::limits::NAME_BYTES_MAX;
use lodge_proto::ErrorBody;

use super::{Engine, NameChoice, Refusal};

/// Users of sandboxes start here, above the ranges that distributions and systemd hand out.
const UID_BASE: u32 = 1_900_000_000;

impl Engine {
    pub(super) fn choose_name(&self, choice: NameChoice) -> Result<String, Refusal> {
        match choice {
            NameChoice::Exactly(name) => {
                check_name(&name)?;
                if self.names.contains_key(&name) {
                    return Err(Box::new(
                        ErrorBody::new("agent.name_taken", format!("another agent is named `{name}`"))
                            .hint(format!("choose another name, or remove that one with `lodge rm {name}`")),
                    ));
                }
                Ok(name)
            }
            NameChoice::Like(name) => {
                check_name(&name)?;
                let taken = |name: &str| self.names.contains_key(name);
                let next = (2..).map(|n: u32| format!("{name}-{n}")).find(|name| !taken(name));
                Ok(if taken(&name) { next.unwrap_or(name) } else { name })
            }
        }
    }

    /// A user that no sandbox ever had: what an agent left behind in a mount is nobody else's.
    pub(super) fn next_uid(&mut self) -> u32 {
        let uid = self.last_uid.map_or(UID_BASE, |uid| uid + 1);
        self.last_uid = Some(uid);
        uid
    }
}

fn check_name(name: &str) -> Result<(), Refusal> {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        && name.as_bytes()[0].is_ascii_alphanumeric()
        && !name.starts_with("agt_");
    if fits {
        return Ok(());
    }
    Err(Box::new(ErrorBody::new("agent.bad_name", format!("`{name}` cannot be an agent's name")).hint(
        "1 to 63 letters, digits, `.`, `_` or `-`, starting with a letter or digit, and not with `agt_`",
    )))
}
