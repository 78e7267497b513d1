//! TLS to a daemon: its certificate is verified before anything is sent, and nothing turns that off.
//!
//! Owns: which authorities are trusted, the handshake, and what is wrong with a certificate. Never: tokens and proofs
//! (see `dial`).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, Error, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The only protocol of the daemon. A server with several protocols selects by it.
const ALPN: &[u8] = b"http/1.1";
/// What a file with authorities may weigh: the list of a whole system has some hundred KiB.
const CA_FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Why a TLS connection could not be trusted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    #[error("its certificate has expired")]
    Expired,
    #[error("its certificate is not valid yet")]
    NotYetValid,
    #[error("its certificate is not for `{dialled}`: {detail}")]
    OtherName { dialled: String, detail: String },
    #[error("its certificate was issued by an authority that is not trusted here")]
    UnknownIssuer,
    #[error(
        "its certificate is not signed with the key of the authority that it names, as that is known here"
    )]
    BadSignature,
    #[error("its certificate is not valid: {detail}")]
    BadCertificate { detail: String },
    #[error("its certificate has no subjectAltName")]
    NoNames,
    #[error("it does not speak TLS")]
    NotTls,
    #[error("the TLS handshake failed: {detail}")]
    Handshake { detail: String },
    #[error("`{host}` is not a name or address that a certificate can have")]
    BadHost { host: String },
    #[error("could not read authorities from {}: {detail}", path.display())]
    CaFile { path: PathBuf, detail: String },
    #[error("this system has no list of trusted authorities")]
    NoAuthorities,
}

impl TlsError {
    pub fn hint(&self) -> &'static str {
        match self {
            TlsError::Expired => "renew the daemon's certificate, then run `lodge reload` on its machine",
            TlsError::NotYetValid => "compare the clocks of both machines, and the certificate's dates",
            TlsError::OtherName { .. } => {
                "dial a name or an address that the certificate has, or issue one with this name in its \
                 subjectAltName"
            }
            TlsError::UnknownIssuer => {
                "set LODGE_CA_FILE to the PEM file of the authority that issued the daemon's certificate"
            }
            TlsError::BadSignature => {
                "perhaps the authority was made again under the same name: set LODGE_CA_FILE to its present PEM file"
            }
            TlsError::BadCertificate { .. } | TlsError::NoNames => {
                "issue a certificate for servers: version 3, CA:FALSE, with a subjectAltName"
            }
            TlsError::NotTls => {
                "if the daemon has no `tls-cert`, write the address with `http://`; otherwise another program \
                 listens there"
            }
            TlsError::Handshake { .. } => "check the address; the daemon's log says more at the level debug",
            TlsError::BadHost { .. } => "write the address as `https://HOST:PORT`",
            TlsError::CaFile { .. } => "set LODGE_CA_FILE to a PEM file with at least one certificate",
            TlsError::NoAuthorities => {
                "set LODGE_CA_FILE to the PEM file of the authority that issued the daemon's certificate"
            }
        }
    }

    /// The error of a handshake. An error of the connection itself, such as a timeout, is returned unchanged.
    fn of_handshake(cause: io::Error, dialled: &str) -> Result<TlsError, io::Error> {
        let Some(error) = cause.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) else {
            return Err(match cause.kind() {
                // A daemon that shuts down or is full closes connections in this way. Nothing was sent.
                io::ErrorKind::UnexpectedEof => {
                    let what = "the connection was closed during the TLS handshake";
                    io::Error::new(io::ErrorKind::ConnectionAborted, what)
                }
                _ => cause,
            });
        };
        Ok(match error {
            Error::InvalidCertificate(wrong) => TlsError::of_certificate(wrong, dialled),
            Error::InvalidMessage(_) => TlsError::NotTls,
            other => TlsError::Handshake { detail: other.to_string() },
        })
    }

    fn of_certificate(wrong: &CertificateError, dialled: &str) -> TlsError {
        match wrong {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => TlsError::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                TlsError::NotYetValid
            }
            CertificateError::NotValidForName => {
                TlsError::OtherName { dialled: dialled.to_owned(), detail: "it has other names".to_owned() }
            }
            CertificateError::NotValidForNameContext { presented, .. } => {
                let detail = match presented.as_slice() {
                    [] => "it has no subjectAltName".to_owned(),
                    names => {
                        let names: Vec<&str> = names.iter().map(|name| plain_name(name)).collect();
                        format!("it is for {}", names.join(", "))
                    }
                };
                TlsError::OtherName { dialled: dialled.to_owned(), detail }
            }
            CertificateError::UnknownIssuer => TlsError::UnknownIssuer,
            CertificateError::BadSignature => TlsError::BadSignature,
            // The list of rustls grows; all others are shown in its words, of which one needs better ones.
            other => {
                let words = other.to_string();
                let is_authority = words.contains("CaUsedAsEndEntity");
                let detail =
                    if is_authority { "it is an authority's own (CA:TRUE)".to_owned() } else { words };
                TlsError::BadCertificate { detail }
            }
        }
    }
}

/// Faults of a daemon's certificate that affect every client, independent of trusted authorities and dialled names.
pub fn certificate_faults(certificate: &CertificateDer<'_>, now: UnixTime) -> Vec<TlsError> {
    let fault = |error: Error| match error {
        Error::InvalidCertificate(wrong) => TlsError::of_certificate(&wrong, ""),
        other => TlsError::BadCertificate { detail: other.to_string() },
    };
    let parsed = match ParsedCertificate::try_from(certificate) {
        Ok(parsed) => parsed,
        Err(error) => return vec![fault(error)],
    };
    let provider = rustls::crypto::ring::default_provider();
    let algorithms = provider.signature_verification_algorithms.all;
    // Without authorities nothing is verified, and what does not depend on them is looked at first.
    let nobody = RootCertStore::empty();
    let verified = verify_server_cert_signed_by_trust_anchor(&parsed, &nobody, &[], now, algorithms);
    let mut faults: Vec<TlsError> = verified.err().map(fault).into_iter().collect();
    faults.retain(|fault| *fault != TlsError::UnknownIssuer);
    if has_no_names(&parsed) {
        faults.push(TlsError::NoNames);
    }
    faults
}

fn has_no_names(certificate: &ParsedCertificate<'_>) -> bool {
    // A name that no certificate has.
    let Ok(name) = ServerName::try_from("none.invalid") else { return false };
    match verify_server_name(certificate, &name) {
        Err(Error::InvalidCertificate(CertificateError::NotValidForNameContext { presented, .. })) => {
            presented.is_empty()
        }
        Ok(()) | Err(_) => false,
    }
}

/// A name as rustls shows it, `DnsName("box.example")`, without the kind.
fn plain_name(shown: &str) -> &str {
    shown.split_once('(').map_or(shown, |(_, name)| name.trim_end_matches(')').trim_matches('"'))
}

/// Makes a TLS connection of a TCP connection to `host:port`. The server has a certificate for that host, issued by an
/// authority in `ca_file` or, without one, of this system.
pub(crate) async fn connect(
    stream: TcpStream,
    addr: &str,
    ca_file: Option<&Path>,
) -> io::Result<Result<TlsStream<TcpStream>, TlsError>> {
    let dialled = host(addr);
    let Ok(name) = ServerName::try_from(dialled.to_owned()) else {
        return Ok(Err(TlsError::BadHost { host: dialled.to_owned() }));
    };
    let config = match authorities(ca_file).and_then(config) {
        Ok(config) => config,
        Err(error) => return Ok(Err(error)),
    };
    match TlsConnector::from(Arc::new(config)).connect(name, stream).await {
        Ok(stream) => Ok(Ok(stream)),
        Err(cause) => TlsError::of_handshake(cause, dialled).map(Err),
    }
}

/// The host of `host:port`, as certificates write it.
fn host(addr: &str) -> &str {
    let host = addr.rsplit_once(':').map_or(addr, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

fn config(roots: RootCertStore) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = versions.map_err(|error| TlsError::Handshake { detail: error.to_string() })?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(config)
}

fn authorities(ca_file: Option<&Path>) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    let Some(path) = ca_file else {
        // Systems have authorities that cannot be read, too: the others are good all the same.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return if roots.is_empty() { Err(TlsError::NoAuthorities) } else { Ok(roots) };
    };
    let unusable = |detail: String| TlsError::CaFile { path: path.to_owned(), detail };
    let unreadable = |error: io::Error| {
        unusable(match error.kind() {
            io::ErrorKind::NotFound => "no such file".to_owned(),
            io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
            io::ErrorKind::IsADirectory => "it is a directory".to_owned(),
            _ => error.to_string(),
        })
    };
    let length = std::fs::metadata(path).map_err(unreadable)?.len();
    if length > CA_FILE_BYTES_MAX {
        return Err(unusable(format!("it is over {CA_FILE_BYTES_MAX} bytes")));
    }
    let pem = std::fs::read(path).map_err(unreadable)?;
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| unusable(error.to_string()))?;
        roots.add(certificate).map_err(|error| unusable(error.to_string()))?;
    }
    if roots.is_empty() { Err(unusable("it has no certificate".to_owned())) } else { Ok(roots) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_an_address_is_a_name_or_an_address_without_brackets() {
        assert_eq!(host("box.lan:5500"), "box.lan");
        assert_eq!(host("[::1]:5500"), "::1");
        assert!(ServerName::try_from(host("[::1]:5500")).is_ok());
    }

    #[test]
    fn a_file_without_certificates_is_reported_with_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.pem");
        let told = |path: &Path| authorities(Some(path)).unwrap_err().to_string();
        assert!(told(&path).contains("ca.pem: no such file"), "{}", told(&path));
        std::fs::write(&path, "nothing").unwrap();
        assert!(told(&path).contains("it has no certificate"), "{}", told(&path));
        std::fs::write(&path, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
        assert!(told(&path).contains("ca.pem: "), "{}", told(&path));
    }
}
