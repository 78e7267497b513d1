//! The methods that each issuer's tokens may call, from the table of methods. Unknown methods cannot be called.

use lodge_core::token::TokenHolder;
use lodge_proto::{ErrorBody, METHODS, MethodDoc, Rights, TokenReach};

use super::ApiCaller;

/// Refuses an expired or revoked token, and a method that the caller's issuer may not call. Returns the reach of the
/// method; `None`: no restriction, for an operator.
pub fn admit(who: &ApiCaller, method: &str) -> Result<Option<TokenReach>, ErrorBody> {
    super::still_good(who)?;
    let hint = match (&who.token.holder, MethodDoc::named(method).map(|doc| doc.rights)) {
        (TokenHolder::Agent(_), Some(Rights::Agent(reach))) => return Ok(Some(reach)),
        (TokenHolder::Operator, Some(Rights::Agent(_) | Rights::Operator)) => return Ok(None),
        (TokenHolder::Operator, None) => "there is no such method".to_owned(),
        (TokenHolder::Agent(_), Some(Rights::Operator) | None) => {
            let names: Vec<&str> = METHODS
                .iter()
                .filter(|doc| matches!(doc.rights, Rights::Agent(_)))
                .map(|doc| doc.name)
                .collect();
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

    use super::*;

    fn who(holder: TokenHolder) -> ApiCaller {
        let at = Timestamp::from_ms(0);
        ApiCaller::with(TokenRow {
            id: TokenId::new(&mut IdSource::new(1), at),
            holder,
            name: None,
            issued_at: at,
            expires_at: Timestamp::from_ms(i64::MAX),
            revoked_at: None,
        })
    }

    /// What a token of an agent may call: reads, turns and jobs of that agent. A change here is a change of rights.
    const AGENT: [&str; 21] = [
        "agent/get",
        "agent/list",
        "client/attach",
        "client/detach",
        "event/list",
        "job/cancel",
        "job/get",
        "job/list",
        "job/output",
        "job/submit",
        "job/wait",
        "rpc/discover",
        "session/export",
        "session/get",
        "session/list",
        "session/messages",
        "session/search",
        "turn/get",
        "turn/interrupt",
        "turn/list",
        "turn/send",
    ];

    #[test]
    fn an_agents_token_may_call_its_list_and_nothing_else_and_what_is_no_method_nobody_may() {
        let (operator, agent) =
            (who(TokenHolder::Operator), who(TokenHolder::Agent("agt_1".parse().unwrap())));
        let mut admitted = BTreeSet::new();
        for doc in METHODS {
            assert!(admit(&operator, doc.name).is_ok(), "{}", doc.name);
            if admit(&agent, doc.name).is_ok() {
                admitted.insert(doc.name);
            }
        }
        assert_eq!(admitted, AGENT.into());
        for who in [operator, agent] {
            let refused = admit(&who, "some/thing").unwrap_err();
            assert_eq!(refused.data.code, "auth.forbidden");
        }
    }
}
