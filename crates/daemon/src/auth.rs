//! Who may call: tokens signed with the state key, one algorithm, and the names a browser may use for us.

use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, encode};
use lodge_core::Timestamp;
use lodge_proto::ErrorBody;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

const OPERATOR: &str = "lodge:operator";
const OPERATOR_DAYS: i64 = 365;
/// A token with less than this left is replaced when the daemon starts.
const RENEW_DAYS: i64 = 30;
const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    iss: String,
    sub: String,
    iat: i64,
    exp: i64,
    /// The log this token is for: one daemon's token opens no other.
    aud: String,
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

/// A caller whose token was good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who {
    pub name: String,
}

impl Gate {
    pub fn new(state_key: &[u8; 32], log: &str) -> Self {
        let key = derive(state_key, &["token"]);
        Gate {
            encoding: EncodingKey::from_secret(&key),
            decoding: DecodingKey::from_secret(&key),
            log: log.to_owned(),
        }
    }

    /// A token for the person who owns the state directory.
    pub fn operator_token(&self, now: Timestamp) -> Result<String, jsonwebtoken::errors::Error> {
        let seconds = now.ms() / 1_000;
        let claims = Claims {
            iss: OPERATOR.to_owned(),
            sub: "operator".to_owned(),
            iat: seconds,
            exp: seconds + OPERATOR_DAYS * DAY_MS / 1_000,
            aud: self.log.clone(),
        };
        encode(&Header::new(Algorithm::HS256), &claims, &self.encoding)
    }

    /// Whether a token is good, and for long enough to keep it.
    pub fn keeps(&self, token: &str, now: Timestamp) -> bool {
        self.claims(token).is_ok_and(|claims| claims.exp * 1_000 > now.ms() + RENEW_DAYS * DAY_MS)
    }

    pub fn check(&self, header: Option<&str>) -> Result<Who, ErrorBody> {
        let Some(token) = header.and_then(|header| header.strip_prefix("Bearer ")) else {
            return Err(ErrorBody::new("auth.missing", "no bearer token was sent")
                .hint("send `Authorization: Bearer …` with the token in credentials.json"));
        };
        match self.claims(token.trim()) {
            Ok(claims) => Ok(Who { name: claims.sub }),
            Err(error) if matches!(error.kind(), jsonwebtoken::errors::ErrorKind::ExpiredSignature) => {
                Err(ErrorBody::new("auth.expired", "the token's time is over")
                    .hint("restart the daemon to get a new one in credentials.json"))
            }
            Err(_) => Err(ErrorBody::new("auth.invalid", "the token is not one of this daemon's")
                .hint("use the token in this daemon's credentials.json, or unset LODGE_TOKEN")),
        }
    }

    fn claims(&self, token: &str) -> Result<Claims, jsonwebtoken::errors::Error> {
        let mut validation = Validation::new(Algorithm::HS256);
        validation.set_issuer(&[OPERATOR]);
        validation.set_audience(&[&self.log]);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        validation.leeway = 0;
        decode::<Claims>(token, &self.decoding, &validation).map(|data| data.claims)
    }
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

/// Refuses names for this machine that a page of somebody else's could have planted, and pages that may not call.
pub fn check_browser(
    host: Option<&str>,
    origin: Option<&str>,
    bound: &str,
    allowed: &[String],
) -> Result<(), ErrorBody> {
    let name = |authority: &str| {
        let bare = authority
            .rsplit_once(':')
            .filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()))
            .map_or(authority, |(name, _)| name);
        bare.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase()
    };
    let ours = |given: &str| {
        let given = name(given);
        given == "localhost"
            || given == name(bound)
            || given.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
    };
    let listed = |authority: &str| {
        allowed.iter().any(|origin| {
            origin.split_once("://").is_some_and(|(_, known)| known.eq_ignore_ascii_case(authority))
        })
    };
    match host {
        Some(host) if ours(host) || listed(host) => {}
        Some(host) => {
            return Err(ErrorBody::new("auth.host", format!("the Host `{host}` is not this machine"))
                .hint("call 127.0.0.1 or localhost, or list the name's origin in allowed-origins"));
        }
        None => return Err(ErrorBody::new("auth.host", "the request has no Host header")),
    }
    let Some(origin) = origin else { return Ok(()) };
    let same = origin
        .split_once("://")
        .is_some_and(|(_, authority)| host.is_some_and(|host| host.eq_ignore_ascii_case(authority)));
    if same || allowed.iter().any(|known| known.eq_ignore_ascii_case(origin)) {
        return Ok(());
    }
    Err(ErrorBody::new("auth.origin", format!("the origin `{origin}` may not call"))
        .hint("list it in allowed-origins"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_of_another_key_log_or_algorithm_is_refused() {
        let now = Timestamp::from_ms(jiffy());
        let gate = Gate::new(&[1; 32], "log");
        let good = gate.operator_token(now).unwrap();
        let check =
            |gate: &Gate, token: &str| gate.check(Some(&format!("Bearer {token}"))).map_err(|e| e.data.code);
        assert_eq!(check(&gate, &good), Ok(Who { name: "operator".into() }));
        assert_eq!(check(&Gate::new(&[2; 32], "log"), &good), Err("auth.invalid".into()));
        assert_eq!(check(&Gate::new(&[1; 32], "other"), &good), Err("auth.invalid".into()));
        // {"alg":"none"} with the same claims and no signature.
        let claims = good.split('.').nth(1).unwrap();
        assert_eq!(check(&gate, &format!("eyJhbGciOiJub25lIn0.{claims}.")), Err("auth.invalid".into()));
        assert_eq!(gate.check(None).unwrap_err().data.code, "auth.missing");
    }

    #[test]
    fn an_old_token_is_expired_and_not_merely_wrong() {
        let gate = Gate::new(&[1; 32], "log");
        let old = gate.operator_token(Timestamp::from_ms(0)).unwrap();
        assert_eq!(gate.check(Some(&format!("Bearer {old}"))).unwrap_err().data.code, "auth.expired");
        assert!(!gate.keeps(&old, Timestamp::from_ms(jiffy())));
    }

    #[test]
    fn only_names_of_this_machine_and_listed_origins_pass() {
        let listed = ["https://lodge.example".to_owned()];
        let check = |host: &str, origin: Option<&str>| {
            check_browser(Some(host), origin, "127.0.0.1:5500", &listed).map_err(|e| e.data.code)
        };
        assert_eq!(check("localhost:5500", None), Ok(()));
        assert_eq!(check("[::1]:5500", None), Ok(()));
        assert_eq!(check("127.0.0.1:5500", Some("http://127.0.0.1:5500")), Ok(()));
        assert_eq!(check("lodge.example", Some("https://lodge.example")), Ok(()));
        assert_eq!(check("evil.example", None), Err("auth.host".into()));
        assert_eq!(check("127.0.0.1:5500", Some("http://evil.example")), Err("auth.origin".into()));
        assert_eq!(check("127.0.0.1:5500", Some("null")), Err("auth.origin".into()));
    }

    fn jiffy() -> i64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        i64::try_from(since.as_millis()).unwrap()
    }
}
