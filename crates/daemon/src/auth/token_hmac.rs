//! HMAC with SHA-256, the one algorithm of tokens, from the library that TLS uses too.

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result};
use jsonwebtoken::signature::{self, Signer, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey};
use ring::hmac;

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: signer,
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Makes tokens be signed and checked by this module. Installing it twice is no error.
pub(super) fn install() {
    PROVIDER.install_default().ok();
}

struct TokenHmac(hmac::Key);

impl TokenHmac {
    fn new(algorithm: &Algorithm, key: &[u8]) -> Result<TokenHmac> {
        match algorithm {
            Algorithm::HS256 => Ok(TokenHmac(hmac::Key::new(hmac::HMAC_SHA256, key))),
            _ => Err(ErrorKind::InvalidAlgorithm.into()),
        }
    }
}

fn signer(algorithm: &Algorithm, key: &EncodingKey) -> Result<Box<dyn JwtSigner>> {
    Ok(Box::new(TokenHmac::new(algorithm, key.as_bytes())?))
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    Ok(Box::new(TokenHmac::new(algorithm, key.try_get_as_bytes()?)?))
}

impl Signer<Vec<u8>> for TokenHmac {
    fn try_sign(&self, message: &[u8]) -> std::result::Result<Vec<u8>, signature::Error> {
        Ok(hmac::sign(&self.0, message).as_ref().to_vec())
    }
}

impl JwtSigner for TokenHmac {
    fn algorithm(&self) -> Algorithm {
        Algorithm::HS256
    }
}

impl Verifier<Vec<u8>> for TokenHmac {
    /// In a time that does not depend on where the signatures differ.
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), signature::Error> {
        hmac::verify(&self.0, message, signature).map_err(|_| signature::Error::new())
    }
}

impl JwtVerifier for TokenHmac {
    fn algorithm(&self) -> Algorithm {
        Algorithm::HS256
    }
}
