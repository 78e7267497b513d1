//! Tokens, as clients see them.

use lodge_core::Timestamp;
use lodge_core::token::TokenRow;
use lodge_proto::TokenView;

use super::at;

pub fn token(row: &TokenRow, now: Timestamp) -> TokenView {
    TokenView {
        id: row.id.to_string(),
        issuer: row.holder.issuer().to_owned(),
        name: row.name.clone(),
        agent: row.holder.agent().map(ToString::to_string),
        status: row.standing(now).word().to_owned(),
        issued_at: at(row.issued_at),
        expires_at: at(row.expires_at),
        revoked_at: row.revoked_at.map(at),
    }
}
