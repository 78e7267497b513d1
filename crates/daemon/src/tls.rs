//! The certificate of the TCP listener: read at the start and at every reload, and swapped whole.
//!
//! Owns: the two files, what they must look like, and the certificate that new connections get. Never: connections (see
//! `api::tls_stream`).

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lodge_proto::hex;
use lodge_proto::tls::{TlsError, certificate_faults};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use crate::config::Config;

/// What a file with a certificate or a key may weigh.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// Bytes of a fingerprint that are shown.
const FINGERPRINT_LEN: usize = 8;
const ALPN: &[u8] = b"http/1.1";

/// Why a certificate or its key cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum CertificateFileError {
    #[error("{set} is set and {missing} is not")]
    Alone { set: &'static str, missing: &'static str },
    #[error("could not read {}", path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("{} is not a regular file", path.display())]
    NotRegular { path: PathBuf },
    #[error("{} is over {FILE_BYTES_MAX} bytes", path.display())]
    TooLarge { path: PathBuf },
    #[error("others can read the private key {} (mode {mode:o})", path.display())]
    Exposed { path: PathBuf, mode: u32 },
    #[error("the private key {} belongs to another user (uid {uid})", path.display())]
    OtherOwner { path: PathBuf, uid: u32 },
    #[error("there is no certificate in {}", path.display())]
    NoCertificate { path: PathBuf },
    #[error("there is no private key in {}", path.display())]
    NoKey { path: PathBuf },
    #[error("the certificate in {} and the key in {} cannot be used", cert.display(), key.display())]
    Unusable {
        cert: PathBuf,
        key: PathBuf,
        #[source]
        cause: rustls::Error,
    },
}

impl CertificateFileError {
    /// What to do, and what comes after that.
    pub fn hint(&self) -> String {
        let fix = match self {
            CertificateFileError::Alone { missing, .. } => {
                return format!("set {missing} too, or neither, and restart the daemon");
            }
            CertificateFileError::Unreadable { .. } => {
                "check the path, and that the daemon's user may read it".to_owned()
            }
            CertificateFileError::NotRegular { .. } => "name the file itself".to_owned(),
            CertificateFileError::TooLarge { .. } => {
                "name a file with one certificate and those of its issuers".to_owned()
            }
            CertificateFileError::Exposed { path, .. } => {
                format!("`chmod 600 {}`, as the daemon's user or root", path.display())
            }
            CertificateFileError::OtherOwner { path, .. } => {
                format!("`chown` {} to the daemon's user or root", path.display())
            }
            CertificateFileError::NoCertificate { .. } => {
                "write it in PEM: `-----BEGIN CERTIFICATE-----`, the daemon's own first".to_owned()
            }
            CertificateFileError::NoKey { .. } => {
                "write it in PEM and without a passphrase: `-----BEGIN PRIVATE KEY-----`".to_owned()
            }
            CertificateFileError::Unusable { .. } => {
                "check that the key belongs to the first certificate of the file".to_owned()
            }
        };
        format!("{fix}; then run `lodge reload`")
    }
}

/// One certificate with its key, ready for connections.
pub struct Certificate {
    server: Arc<ServerConfig>,
    own: CertificateDer<'static>,
}

impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificate").field("fingerprint", &self.fingerprint()).finish_non_exhaustive()
    }
}

impl Certificate {
    pub fn server(&self) -> Arc<ServerConfig> {
        self.server.clone()
    }

    /// Whether it was issued for this host, a name or an address.
    pub fn is_for(&self, host: &str) -> bool {
        let (Ok(parsed), Ok(name)) = (ParsedCertificate::try_from(&self.own), ServerName::try_from(host))
        else {
            return false;
        };
        rustls::client::verify_server_name(&parsed, &name).is_ok()
    }

    /// Why every client refuses it. The daemon serves with it all the same: clients that are not ours may be less strict.
    fn faults(&self) -> Vec<TlsError> {
        certificate_faults(&self.own, UnixTime::now())
    }

    /// Identifies it briefly.
    pub fn fingerprint(&self) -> String {
        let digest = Sha256::digest(&self.own);
        format!("sha256:{}", hex::encode(&digest[..FINGERPRINT_LEN]))
    }
}

/// What the settings ask for, and the certificate in effect.
#[derive(Debug)]
pub struct Tls {
    /// None: TCP is served without TLS.
    files: Option<CertificateFiles>,
    current: watch::Sender<Option<Arc<Certificate>>>,
}

#[derive(Debug, Clone)]
struct CertificateFiles {
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl Tls {
    /// Without a certificate yet: see [`Tls::read`].
    pub fn new(config: &Config) -> Tls {
        let settings = config.settings();
        let file = |path: &Option<PathBuf>| path.as_ref().map(|path| config.data_dir.join(path));
        let files = CertificateFiles { cert: file(&settings.tls_cert), key: file(&settings.tls_key) };
        let is_wanted = !settings.no_http && (files.cert.is_some() || files.key.is_some());
        Tls { files: is_wanted.then_some(files), current: watch::Sender::new(None) }
    }

    /// Reads the files. None: TLS is not wanted.
    pub fn read(&self) -> Result<Option<Certificate>, CertificateFileError> {
        self.files.as_ref().map(CertificateFiles::read).transpose()
    }

    /// New connections get this certificate from now on.
    pub fn put(&self, certificate: Certificate) {
        for fault in certificate.faults() {
            let file = self.cert_file().display().to_string();
            tracing::warn!(event = "tls.certificate_refused", file, reason = %fault, hint = fault.hint());
        }
        self.current.send_replace(Some(Arc::new(certificate)));
    }

    pub fn current(&self) -> Option<Arc<Certificate>> {
        self.current.borrow().clone()
    }

    /// Why clients refuse the certificate in effect, as of now.
    pub fn warnings(&self) -> Vec<String> {
        let faults = self.current().map(|certificate| certificate.faults()).unwrap_or_default();
        let file = self.cert_file().display();
        let warning =
            |fault: TlsError| format!("tls-cert: clients refuse {file}: {fault} ({})", fault.hint());
        faults.into_iter().map(warning).collect()
    }

    fn cert_file(&self) -> &Path {
        self.files.as_ref().and_then(|files| files.cert.as_deref()).unwrap_or(Path::new(""))
    }

    /// Waits until there is a certificate.
    pub async fn available(&self) {
        // The sender is here, so that it cannot be gone.
        drop(self.current.subscribe().wait_for(Option::is_some).await);
    }
}

impl CertificateFiles {
    fn read(&self) -> Result<Certificate, CertificateFileError> {
        let (cert, key) = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => (cert, key),
            (Some(_), None) => {
                return Err(CertificateFileError::Alone { set: "tls-cert", missing: "tls-key" });
            }
            (None, _) => return Err(CertificateFileError::Alone { set: "tls-key", missing: "tls-cert" }),
        };
        let no_certificate = |_| CertificateFileError::NoCertificate { path: cert.clone() };
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&read(cert, check_nothing)?)
            .collect::<Result<_, _>>()
            .map_err(no_certificate)?;
        let Some(own) = chain.first().cloned() else {
            return Err(CertificateFileError::NoCertificate { path: cert.clone() });
        };
        let key_der = PrivateKeyDer::from_pem_slice(&read(key, check_private)?)
            .map_err(|_| CertificateFileError::NoKey { path: key.clone() })?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let server = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key_der));
        let unusable = |cause| CertificateFileError::Unusable { cert: cert.clone(), key: key.clone(), cause };
        let mut server = server.map_err(unusable)?;
        server.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Certificate { server: Arc::new(server), own })
    }
}

fn read(
    path: &Path,
    check: fn(&Path, &std::fs::Metadata) -> Result<(), CertificateFileError>,
) -> Result<Vec<u8>, CertificateFileError> {
    let unreadable = |cause| CertificateFileError::Unreadable { path: path.to_owned(), cause };
    // A FIFO would be waited for.
    let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = opened.map_err(unreadable)?;
    // Of the opened file, regardless of its name.
    let found = file.metadata().map_err(unreadable)?;
    if !found.is_file() {
        return Err(CertificateFileError::NotRegular { path: path.to_owned() });
    }
    check(path, &found)?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(CertificateFileError::TooLarge { path: path.to_owned() });
    }
    Ok(bytes)
}

fn check_nothing(_: &Path, _: &std::fs::Metadata) -> Result<(), CertificateFileError> {
    Ok(())
}

/// A key belongs to its user. One of root's may be readable by a group, which is how systems share them with services.
fn check_private(path: &Path, found: &std::fs::Metadata) -> Result<(), CertificateFileError> {
    let mode = found.mode() & 0o777;
    let own = rustix::process::geteuid().as_raw();
    if ![own, 0].contains(&found.uid()) {
        return Err(CertificateFileError::OtherOwner { path: path.to_owned(), uid: found.uid() });
    }
    let allowed = if found.uid() == 0 { 0o740 } else { 0o700 };
    if mode & !allowed == 0 {
        Ok(())
    } else {
        Err(CertificateFileError::Exposed { path: path.to_owned(), mode })
    }
}
