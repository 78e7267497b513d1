//! What each issuer's tokens may call, name by name. A method that stands in no list can be called by nobody.

use lodge_core::token::Holder;
use lodge_proto::ErrorBody;

use super::Who;

/// Which of a method's parameters must be the caller's own, when the caller is an agent's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// It names nothing that belongs to anybody.
    Nobodys,
    /// `agent`, which may be left out.
    Agent,
    /// `agent`, and `session` where there is one.
    AgentAndSession,
    /// `session`.
    Session,
    /// `turn`.
    Turn,
    /// `job`.
    Job,
}

/// What a token of an agent may call: reads, turns and jobs of that agent.
pub const AGENT: &[(&str, Reach)] = &[
    ("rpc/discover", Reach::Nobodys),
    // It lists the caller's agent alone.
    ("agent/list", Reach::Nobodys),
    ("agent/get", Reach::Agent),
    ("turn/send", Reach::AgentAndSession),
    ("turn/get", Reach::Turn),
    ("turn/list", Reach::Session),
    ("turn/interrupt", Reach::Turn),
    ("session/list", Reach::Agent),
    ("session/get", Reach::Session),
    ("session/messages", Reach::Session),
    ("session/export", Reach::Session),
    ("session/search", Reach::AgentAndSession),
    ("job/submit", Reach::AgentAndSession),
    ("job/list", Reach::AgentAndSession),
    ("job/get", Reach::Job),
    ("job/wait", Reach::Job),
    ("job/cancel", Reach::Job),
    ("job/output", Reach::Job),
    ("event/list", Reach::AgentAndSession),
    ("client/attach", Reach::AgentAndSession),
    ("client/detach", Reach::Nobodys),
];

/// What an operator's token may call beside that.
pub const OPERATOR: &[&str] = &[
    "info",
    "agent/create",
    "agent/start",
    "agent/stop",
    "agent/kill",
    "agent/remove",
    "agent/restart",
    "agent/update",
    "agent/logs",
    "session/fork",
    "session/rewind",
    "session/regenerate",
    "session/branches/activate",
    "session/delete",
    "image/build",
    "image/list",
    "image/inspect",
    "image/remove",
    "image/tag",
    "image/pull",
    "image/push",
    "image/diff",
    "bin/build",
    "bin/list",
    "bin/inspect",
    "bin/pull",
    "bin/push",
    "bin/remove",
    "provider/add",
    "provider/list",
    "provider/remove",
    "provider/test",
    "lineage/list",
    "lineage/get",
    "lineage/resolve",
    "lineage/snapshot",
    "lineage/messages",
    "token/issue",
    "token/list",
    "token/revoke",
    "quarantine/list",
    "quarantine/retry",
    "quarantine/drop",
    "daemon/shutdown",
    "daemon/reap",
    "daemon/reload",
];

/// Refuses a token that is over since its caller came, and a method that the caller's issuer has no right to. Tells how
/// far it reaches with one that it has; with none an operator reaches everything.
pub fn admit(who: &Who, method: &str) -> Result<Option<Reach>, ErrorBody> {
    super::still_good(who)?;
    let agents = AGENT.iter().find(|(name, _)| *name == method).map(|(_, reach)| *reach);
    let hint = match (&who.token.holder, agents) {
        (Holder::Agent(_), Some(reach)) => return Ok(Some(reach)),
        (Holder::Operator, Some(_)) => return Ok(None),
        (Holder::Operator, None) if OPERATOR.contains(&method) => return Ok(None),
        (Holder::Operator, None) => "the method is in no list of rights, so nobody may call it".to_owned(),
        (Holder::Agent(_), None) => {
            let names: Vec<&str> = AGENT.iter().map(|(name, _)| *name).collect();
            format!("a token of an agent may call {}; use an operator's token", names.join(", "))
        }
    };
    let issuer = who.token.holder.issuer();
    Err(ErrorBody::new("auth.forbidden", format!("a token of `{issuer}` may not call `{method}`")).hint(hint))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use lodge_core::token::TokenRow;
    use lodge_core::{IdSource, Timestamp, TokenId};
    use lodge_proto::METHODS;

    use super::*;

    fn who(holder: Holder) -> Who {
        let at = Timestamp::from_ms(0);
        Who::with(TokenRow {
            id: TokenId::new(&mut IdSource::new(1), at),
            holder,
            name: None,
            issued_at: at,
            expires_at: Timestamp::from_ms(i64::MAX),
            revoked_at: None,
        })
    }

    #[test]
    fn every_method_stands_in_exactly_one_list_and_every_line_is_a_method() {
        let known: BTreeSet<&str> = METHODS.iter().map(|doc| doc.name).collect();
        let agent: BTreeSet<&str> = AGENT.iter().map(|(name, _)| *name).collect();
        let operator: BTreeSet<&str> = OPERATOR.iter().copied().collect();
        assert_eq!(agent.intersection(&operator).collect::<Vec<_>>(), Vec::<&&str>::new());
        let listed: BTreeSet<&str> = agent.union(&operator).copied().collect();
        assert_eq!(known.difference(&listed).collect::<Vec<_>>(), Vec::<&&str>::new(), "in no list");
        assert_eq!(listed.difference(&known).collect::<Vec<_>>(), Vec::<&&str>::new(), "not a method");
        assert_eq!(listed.len(), AGENT.len() + OPERATOR.len(), "a line stands twice");
    }

    #[test]
    fn an_agents_token_may_call_its_list_and_nothing_else_and_what_is_in_no_list_nobody_may() {
        let (operator, agent) = (who(Holder::Operator), who(Holder::Agent("agt_1".parse().unwrap())));
        for doc in METHODS {
            assert!(admit(&operator, doc.name).is_ok(), "{}", doc.name);
            assert_eq!(
                admit(&agent, doc.name).is_ok(),
                AGENT.iter().any(|(name, _)| *name == doc.name),
                "{}",
                doc.name
            );
        }
        for who in [operator, agent] {
            let refused = admit(&who, "some/thing").unwrap_err();
            assert_eq!(refused.data.code, "auth.forbidden");
        }
    }
}
