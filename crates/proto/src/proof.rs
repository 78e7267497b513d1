//! How a daemon proves, before a client sends its token, that it is the daemon that issued the token.
//!
//! The client sends the token's id and a fresh nonce. The daemon makes the token's value again from what is recorded of
//! it, and answers with an HMAC over the nonce, its epoch and the address at which the connection arrived. Only that
//! daemon and the holder of the token can compute it. The address is compared with the one that was dialled, so a
//! program that passes the question on to the real daemon proves nothing.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use lodge_link::{DIGEST_LEN, hmac_sha256, same_bytes};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{base64, hex};

pub const NONCE_LEN: usize = 32;
/// A number that is used once.
pub type Nonce = [u8; NONCE_LEN];

/// Path of a daemon's proof: `/v1/proof/<token id>/<nonce in hex>`.
pub const PROOF_PATH: &str = "/v1/proof";
const LABEL: &[u8] = b"lodge daemon proof 1\0";
/// No id is longer.
const TOKEN_ID_MAX: usize = 64;

/// The daemon's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    pub epoch: u64,
    /// The address at which the daemon sees the connection arrive.
    pub addr: SocketAddr,
    /// The HMAC, in hex.
    pub proof: String,
}

impl Proof {
    pub fn of(token: &str, nonce: &Nonce, epoch: u64, addr: SocketAddr) -> Proof {
        let addr = canonical(addr);
        Proof { epoch, addr, proof: hex::encode(&hmac(token, nonce, epoch, addr)) }
    }

    /// Whether the author of this proof has the token and got this nonce.
    pub fn is_right(&self, token: &str, nonce: &Nonce) -> bool {
        let Some(given) = hex::decode::<DIGEST_LEN>(&self.proof) else { return false };
        same_bytes(&given, &hmac(token, nonce, self.epoch, self.addr))
    }
}

fn hmac(token: &str, nonce: &Nonce, epoch: u64, addr: SocketAddr) -> [u8; DIGEST_LEN] {
    let addr = addr.to_string();
    hmac_sha256(token.as_bytes(), &[LABEL, nonce, &epoch.to_be_bytes(), addr.as_bytes()])
}

/// An address as both sides write it: an IPv4 address in IPv6 is that IPv4 address, and what only one machine knows
/// about it (the number of its interface) is left out.
pub fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

/// `host:port` with `localhost` replaced by 127.0.0.1. Clients and the daemon then use the same address, independent of
/// name resolution.
pub fn without_localhost(addr: &str) -> Cow<'_, str> {
    match addr.rsplit_once(':') {
        Some((host, port)) if is_localhost(host) => {
            Cow::Owned(format!("{}:{port}", IpAddr::from(Ipv4Addr::LOCALHOST)))
        }
        _ => Cow::Borrowed(addr),
    }
}

fn is_localhost(host: &str) -> bool {
    host.strip_suffix('.').unwrap_or(host).eq_ignore_ascii_case("localhost")
}

/// The id in a token; none when it is not a token.
pub fn token_id(token: &str) -> Option<String> {
    let claims = token.split('.').nth(1).filter(|_| token.split('.').count() == 3)?;
    // JWTs have the letters for URLs, and no padding.
    let mut plain = claims.replace('-', "+").replace('_', "/");
    plain.push_str(&"==="[..(4 - plain.len() % 4) % 4]);
    let claims: Value = serde_json::from_slice(&base64::decode(&plain)?).ok()?;
    let id = claims.get("jti")?.as_str()?;
    let fits = (1..=TOKEN_ID_MAX).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    fits.then(|| id.to_owned())
}

/// The path where a daemon proves that it knows this token.
pub fn path(id: &str, nonce: &Nonce) -> String {
    format!("{PROOF_PATH}/{id}/{}", hex::encode(nonce))
}

pub fn nonce(text: &str) -> Option<Nonce> {
    hex::decode(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    // {"alg":"HS256"} . {"jti":"tok_01"} . x
    const TOKEN: &str = "eyJhbGciOiJIUzI1NiJ9.eyJqdGkiOiJ0b2tfMDEifQ.x";
    const NONCE: Nonce = [7; NONCE_LEN];

    fn addr(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_proof_is_right_for_its_token_nonce_epoch_and_address_alone() {
        let proof = Proof::of(TOKEN, &NONCE, 3, addr("127.0.0.1:5500"));
        assert!(proof.is_right(TOKEN, &NONCE));
        assert!(!proof.is_right("other", &NONCE));
        assert!(!proof.is_right(TOKEN, &[8; NONCE_LEN]));
        assert!(!Proof { epoch: 4, ..proof.clone() }.is_right(TOKEN, &NONCE));
        assert!(!Proof { addr: addr("[::1]:5500"), ..proof.clone() }.is_right(TOKEN, &NONCE));
        for wrong in ["", "00", &"0".repeat(64), &"g".repeat(64), &"é".repeat(32)] {
            assert!(!Proof { proof: wrong.to_owned(), ..proof.clone() }.is_right(TOKEN, &NONCE), "{wrong}");
        }
    }

    #[test]
    fn the_same_proof_is_made_in_every_release() {
        let proof = Proof::of(TOKEN, &NONCE, 3, addr("[::ffff:127.0.0.1]:5500"));
        assert_eq!(
            serde_json::to_string(&proof).unwrap(),
            r#"{"epoch":3,"addr":"127.0.0.1:5500","proof":"5bdd22a831536edacaa42b85eb97848984e6e588f1be956a688a5e79e27cad50"}"#
        );
    }

    #[test]
    fn the_id_is_read_from_a_token_and_from_nothing_else() {
        assert_eq!(token_id(TOKEN).as_deref(), Some("tok_01"));
        // {"jti":"a/b"} and {"jti":""} and {"jti":1}
        for wrong in ["", "a.b", "a.b.c", "a.eyJqdGkiOiJhL2IifQ.c", "a.eyJqdGkiOiIifQ.c", "a.eyJqdGkiOjF9.c"]
        {
            assert_eq!(token_id(wrong), None, "{wrong}");
        }
        assert_eq!(token_id(&format!("{TOKEN}.more")), None);
    }

    #[test]
    fn localhost_is_one_address_and_no_other_name_is() {
        assert_eq!(without_localhost("localhost:5500"), "127.0.0.1:5500");
        assert_eq!(without_localhost("LocalHost.:1"), "127.0.0.1:1");
        for other in ["127.0.0.1:1", "[::1]:1", "localhost.example:1", "notlocalhost:1", "nonsense"] {
            assert_eq!(without_localhost(other), other);
        }
    }

    #[test]
    fn a_nonce_is_written_in_full() {
        assert_eq!(path("tok_01", &NONCE), format!("/v1/proof/tok_01/{}", "07".repeat(32)));
        assert_eq!(nonce(&"07".repeat(32)), Some(NONCE));
        for wrong in [String::new(), "07".repeat(31), "07".repeat(33), "+7".repeat(32)] {
            assert_eq!(nonce(&wrong), None, "{wrong}");
        }
    }
}
