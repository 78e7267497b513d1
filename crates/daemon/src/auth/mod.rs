//! Who may call: tokens signed with the state key, one algorithm, the rights of each issuer, and the names a browser may
//! use for us.
//!
//! A token's value is made from what is recorded of it and the key, so it need not be kept anywhere.

mod access;
mod browser;
pub mod rights;
mod token_hmac;

use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, encode};
use lodge_core::token::{AGENT_ISSUER, CREDENTIALS, OPERATOR_ISSUER, TokenHolder, TokenRow, TokenStatus};
use lodge_core::{Timestamp, TokenId};
use lodge_proto::ErrorBody;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use access::{Access, ApiCaller};
pub use browser::{check_browser, check_query, only};

/// How long the token in `credentials.json` is good for.
pub const CREDENTIALS_MS: i64 = 365 * DAY_MS;
/// One with less than this left is replaced when the daemon starts.
const RENEW_MS: i64 = 30 * DAY_MS;
pub const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    iss: String,
    sub: String,
    iat: i64,
    exp: i64,
    /// The log this token is for: one daemon's token opens no other.
    aud: String,
    jti: String,
}

impl Claims {
    fn id(&self) -> Option<TokenId> {
        self.jti.parse().ok()
    }
}

/// Signs and checks tokens.
pub struct Gate {
    encoding: EncodingKey,
    decoding: DecodingKey,
    log: String,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").field("key", &"[secret]").finish_non_exhaustive()
    }
}

impl Gate {
    pub fn new(state_key: &[u8; 32], log: &str) -> Self {
        token_hmac::install();
        let key = derive(state_key, &["token"]);
        Gate {
            encoding: EncodingKey::from_secret(&key),
            decoding: DecodingKey::from_secret(&key),
            log: log.to_owned(),
        }
    }

    /// The value of a recorded token: always the same.
    pub fn value(&self, row: &TokenRow) -> Result<String, jsonwebtoken::errors::Error> {
        let claims = Claims {
            iss: row.holder.issuer().to_owned(),
            sub: row.holder.agent().map_or_else(|| "operator".to_owned(), ToString::to_string),
            iat: row.issued_at.ms().div_euclid(1_000),
            exp: row.expires_at.ms().div_euclid(1_000),
            aud: self.log.clone(),
            jti: row.id.to_string(),
        };
        encode(&Header::new(Algorithm::HS256), &claims, &self.encoding)
    }

    /// Whether a token is the one of `credentials.json`, still live, and for long enough to keep it.
    pub fn keeps(&self, token: &str, recorded: &[TokenRow], now: Timestamp) -> bool {
        let Some(id) = self.claims(token).ok().and_then(|claims| claims.id()) else { return false };
        recorded.iter().any(|row| {
            row.id == id
                && row.holder == TokenHolder::Operator
                && row.name.as_deref() == Some(CREDENTIALS)
                && row.standing(now.plus_ms(RENEW_MS)) == TokenStatus::Live
        })
    }

    /// Who sends this header.
    pub fn check(&self, header: Option<&str>, access: &Access) -> Result<ApiCaller, ErrorBody> {
        let Some(token) = header.and_then(|header| header.strip_prefix("Bearer ")) else {
            return Err(ErrorBody::new("auth.missing", "no bearer token was sent")
                .hint("send `Authorization: Bearer …` with the token in credentials.json"));
        };
        match self.claims(token.trim()) {
            // Ours by its signature, so it was recorded, and was revoked since.
            Ok(claims) => {
                let who = claims.id().and_then(|id| access.enter(&id)).ok_or_else(revoked)?;
                still_good(&who)?;
                if who.token.holder.issuer() == claims.iss { Ok(who) } else { Err(not_ours()) }
            }
            Err(TokenFault::Expired) => Err(expired()),
            Err(TokenFault::NotOurs) => Err(not_ours()),
        }
    }

    fn claims(&self, token: &str) -> Result<Claims, TokenFault> {
        // The algorithm is looked at before anything else; the token has no say in it.
        let mut validation = Validation::new(Algorithm::HS256);
        validation.set_issuer(&[OPERATOR_ISSUER, AGENT_ISSUER]);
        validation.set_audience(&[&self.log]);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        validation.leeway = 0;
        match decode::<Claims>(token, &self.decoding, &validation) {
            Ok(data) => Ok(data.claims),
            Err(error) if matches!(error.kind(), jsonwebtoken::errors::ErrorKind::ExpiredSignature) => {
                Err(TokenFault::Expired)
            }
            Err(_) => Err(TokenFault::NotOurs),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenFault {
    Expired,
    NotOurs,
}

fn still_good(who: &ApiCaller) -> Result<(), ErrorBody> {
    match who.standing() {
        TokenStatus::Live => Ok(()),
        TokenStatus::Expired => Err(expired()),
        TokenStatus::Revoked => Err(revoked()),
    }
}

pub fn not_ours() -> ErrorBody {
    ErrorBody::new("auth.invalid", "the token is not one of this daemon's")
        .hint("use the token in this daemon's credentials.json, or unset LODGE_TOKEN")
}

pub fn revoked() -> ErrorBody {
    ErrorBody::new("auth.revoked", "the token was revoked")
        .hint("use another; a daemon that starts writes a new one to credentials.json")
}

pub fn expired() -> ErrorBody {
    ErrorBody::new("auth.expired", "the token's time is over").hint(
        "issue another with `lodge token issue`, or restart the daemon to get a new one in credentials.json",
    )
}

/// A secret for one purpose, from the state key.
pub fn derive(state_key: &[u8; 32], purpose: &[&str]) -> [u8; 32] {
    // The state key goes first and has a fixed length; every part is preceded by its length.
    let mut hash = Sha256::new();
    hash.update(b"lodge-derive-1");
    hash.update(state_key);
    for part in purpose {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use lodge_core::IdSource;

    use super::*;
    use crate::shell::now;

    fn row(holder: TokenHolder, expires_at: Timestamp) -> TokenRow {
        TokenRow {
            id: TokenId::new(&mut IdSource::new(7), Timestamp::from_ms(1)),
            holder,
            name: Some(CREDENTIALS.to_owned()),
            issued_at: Timestamp::from_ms(1),
            expires_at,
            revoked_at: None,
        }
    }

    fn later() -> Timestamp {
        now().plus_ms(CREDENTIALS_MS)
    }

    #[test]
    fn a_token_of_another_key_log_or_algorithm_is_refused() {
        let gate = Gate::new(&[1; 32], "log");
        let row = row(TokenHolder::Operator, later());
        let access = Access::of([row.clone()], now());
        let good = gate.value(&row).unwrap();
        let check = |gate: &Gate, token: &str| {
            gate.check(Some(&format!("Bearer {token}")), &access)
                .map(|who| who.caller)
                .map_err(|e| e.data.code)
        };
        assert_eq!(check(&gate, &good), Ok(CREDENTIALS.into()));
        assert_eq!(check(&Gate::new(&[2; 32], "log"), &good), Err("auth.invalid".into()));
        assert_eq!(check(&Gate::new(&[1; 32], "other"), &good), Err("auth.invalid".into()));
        // {"alg":"none"} with the same claims and no signature.
        let claims = good.split('.').nth(1).unwrap();
        assert_eq!(check(&gate, &format!("eyJhbGciOiJub25lIn0.{claims}.")), Err("auth.invalid".into()));
        assert_eq!(gate.check(None, &access).unwrap_err().data.code, "auth.missing");
    }

    #[test]
    fn a_revoked_token_shows_out_who_came_with_it_and_lets_nobody_in() {
        let gate = Gate::new(&[1; 32], "log");
        let row = TokenRow { name: None, ..row(TokenHolder::Agent("agt_1".parse().unwrap()), later()) };
        let access = Access::of([row.clone()], now());
        let header = format!("Bearer {}", gate.value(&row).unwrap());
        let who = gate.check(Some(&header), &access).unwrap();
        assert_eq!(
            (who.caller.as_str(), who.agent().map(ToString::to_string)),
            (row.id.as_str(), Some("agt_1".into()))
        );
        // Told twice it is the same token, and who came with it is not forgotten.
        access.put(row.clone(), now());
        access.put(TokenRow { revoked_at: Some(Timestamp::from_ms(2)), ..row }, now());
        let wait = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        assert_eq!(wait.block_on(who.over()), TokenStatus::Revoked);
        assert_eq!(gate.check(Some(&header), &access).unwrap_err().data.code, "auth.revoked");
    }

    /// A daemon makes a token's value again to prove that it knows it: were it another, no client with a token of an
    /// earlier release would believe this one.
    #[test]
    fn the_value_of_a_token_is_the_same_in_every_release() {
        let row = row(TokenHolder::Operator, Timestamp::from_ms(4_000_000_000_000));
        let value = Gate::new(&[1; 32], "log").value(&row).unwrap();
        assert_eq!(lodge_proto::proof::token_id(&value).as_deref(), Some(row.id.as_str()));
        let parts = [
            "eyJ0eXAiOiJKV1QiLCJhbGciOiJIUzI1NiJ9",
            "eyJpc3MiOiJsb2RnZTpvcGVyYXRvciIsInN1YiI6Im9wZXJhdG9yIiwiaWF0IjowLCJleHAiOjQwMDAwMDAwMDAsImF1ZCI6ImxvZyIsImp0aSI6InRva18wMDAwMDAwMDF3aGNrNDNlcSJ9",
            "zz2qx-DeUO6oXQK5eMtFFsdAfecbgrXiksaKMIvnK1E",
        ];
        assert_eq!(value, parts.join("."));
    }

    #[test]
    fn an_old_token_is_expired_and_not_merely_wrong() {
        let gate = Gate::new(&[1; 32], "log");
        let row = row(TokenHolder::Operator, Timestamp::from_ms(10));
        let header = format!("Bearer {}", gate.value(&row).unwrap());
        assert_eq!(
            gate.check(Some(&header), &Access::of([row], now())).unwrap_err().data.code,
            "auth.expired"
        );
    }

    #[test]
    fn only_a_recorded_credential_with_time_left_is_kept() {
        let gate = Gate::new(&[1; 32], "log");
        let (now, good) = (now(), row(TokenHolder::Operator, later()));
        let value = gate.value(&good).unwrap();
        assert!(gate.keeps(&value, std::slice::from_ref(&good), now));
        assert!(!gate.keeps(&value, &[], now), "revoked, or of a database that is gone");
        assert!(!gate.keeps("nonsense", std::slice::from_ref(&good), now));
        let named = TokenRow { name: Some("mine".into()), ..good.clone() };
        assert!(!gate.keeps(&value, &[named], now), "somebody else's");
        let soon = TokenRow { expires_at: now.plus_ms(RENEW_MS - 1), ..good };
        assert!(!gate.keeps(&gate.value(&soon).unwrap(), &[soon], now));
    }
}
