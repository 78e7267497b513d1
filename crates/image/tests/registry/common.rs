use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lodge_image::oci::{Descriptor, ManifestDocument};
use lodge_image::registry::{
    RegistryClient, RegistryError, RegistryLogin, RegistryLogins, RegistryTerms, TransferWatch,
};
use lodge_image::{Blobs, Digest, Pins, RemoteImage};
use lodge_testkit::registry::MockRegistry;
use serde_json::{Value, json};
use tempfile::TempDir;

pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// `user:pass` in base64.
pub const LOGIN: &str = "dXNlcjpwYXNz";
pub const SECRET: &str = "pass";

pub struct NoLogin;

impl RegistryLogins for NoLogin {
    fn login(&self, _host: &str) -> Result<Option<RegistryLogin>, String> {
        Ok(None)
    }
}

pub struct OneLogin {
    pub host: String,
    pub login: RegistryLogin,
}

impl RegistryLogins for OneLogin {
    fn login(&self, host: &str) -> Result<Option<RegistryLogin>, String> {
        Ok((host == self.host).then(|| self.login.clone()))
    }
}

pub fn user(host: &str) -> Arc<dyn RegistryLogins> {
    let login = RegistryLogin { user: "user".to_owned(), secret: SECRET.to_owned(), is_token: false };
    Arc::new(OneLogin { host: host.to_owned(), login })
}

/// Nothing is waited for between tries, and nothing is taken for a stall that is only a busy machine.
pub fn quick() -> RegistryTerms {
    RegistryTerms {
        pause: Duration::ZERO,
        pause_max: Duration::ZERO,
        chunk: 64 << 10,
        ..RegistryTerms::default()
    }
}

/// A registry that sends nothing for a moment has stalled.
pub fn hasty() -> RegistryTerms {
    RegistryTerms { silence: Duration::from_millis(250), ..quick() }
}

#[derive(Default)]
pub struct RecordedTransfer {
    pub planned: Mutex<BTreeMap<Digest, bool>>,
    pub moved: Mutex<BTreeMap<Digest, u64>>,
}

impl TransferWatch for RecordedTransfer {
    fn planned(&self, part: &Descriptor) {
        self.planned.lock().unwrap().insert(part.digest, false);
    }

    fn there(&self, part: &Descriptor) {
        self.planned.lock().unwrap().insert(part.digest, true);
    }

    fn moved(&self, part: &Digest, bytes: u64) {
        self.moved.lock().unwrap().insert(*part, bytes);
    }
}

pub struct LocalStore {
    pub dir: TempDir,
    pub blobs: Blobs,
    pub pins: Pins,
    pub registries: RegistryClient,
    pub watched: Arc<RecordedTransfer>,
}

impl LocalStore {
    pub fn new(terms: RegistryTerms) -> LocalStore {
        LocalStore::with(Arc::new(NoLogin), terms)
    }

    pub fn with(logins: Arc<dyn RegistryLogins>, terms: RegistryTerms) -> LocalStore {
        let dir = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(&dir.path().join("registry")).unwrap();
        let pins = blobs.pins();
        let registries = RegistryClient::with_terms(logins, terms);
        LocalStore { dir, blobs, pins, registries, watched: Arc::default() }
    }

    pub async fn resolve(
        &self,
        remote: &RemoteImage,
    ) -> Result<(Descriptor, ManifestDocument), RegistryError> {
        self.registries.resolve(&self.blobs, &self.pins, remote).await
    }

    pub async fn fetch(
        &self,
        remote: &RemoteImage,
        document: &ManifestDocument,
    ) -> Result<(), RegistryError> {
        self.registries.fetch(&self.blobs, &self.pins, remote, document, self.watched.clone()).await
    }

    pub async fn pull(&self, remote: &RemoteImage) -> Result<Descriptor, RegistryError> {
        let (descriptor, document) = self.resolve(remote).await?;
        self.fetch(remote, &document).await?;
        Ok(descriptor)
    }

    pub async fn push(&self, image: &Descriptor, to: &RemoteImage) -> Result<u64, RegistryError> {
        self.registries.push(&self.blobs, image, to, self.watched.clone()).await
    }

    pub fn put(&self, bytes: &[u8]) -> Digest {
        self.blobs.put(&self.pins, bytes).unwrap()
    }

    pub fn read(&self, digest: &str) -> Vec<u8> {
        self.blobs.read(&digest.parse().unwrap(), u64::MAX).unwrap()
    }

    /// The blobs in the store, by their digests.
    pub fn stored(&self) -> Vec<String> {
        let dir = self.dir.path().join("registry/blobs/sha256");
        let mut found: Vec<_> = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| format!("sha256:{}", entry.unwrap().file_name().to_string_lossy()))
            .collect();
        found.sort();
        found
    }

    pub fn blob_file(&self, digest: &str) -> PathBuf {
        self.dir.path().join("registry/blobs/sha256").join(digest.trim_start_matches("sha256:"))
    }
}

pub fn remote(host: &str, name: &str) -> RemoteImage {
    RemoteImage::read(&format!("{host}/{name}")).unwrap().unwrap()
}

/// Bytes that do not repeat.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

pub fn descriptor(media_type: &str, bytes: &[u8]) -> Value {
    json!({ "mediaType": media_type, "digest": Digest::of(bytes).to_string(), "size": bytes.len() })
}

pub fn manifest_of(config: &[u8], layers: &[Vec<u8>]) -> Value {
    let layer = |bytes: &Vec<u8>| descriptor("application/octet-stream", bytes);
    json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": "application/vnd.example.thing",
        "config": descriptor("application/vnd.oci.empty.v1+json", config),
        "layers": layers.iter().map(layer).collect::<Vec<_>>(),
    })
}

pub fn index_of(manifests: &[(&str, &[u8])]) -> Value {
    let one = |(architecture, bytes): &(&str, &[u8])| {
        let mut part = descriptor(MANIFEST, bytes);
        part["platform"] = json!({ "os": "linux", "architecture": architecture });
        part
    };
    json!({
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": manifests.iter().map(one).collect::<Vec<_>>(),
    })
}

pub fn written(value: &Value) -> Vec<u8> {
    serde_json::to_vec_pretty(value).unwrap()
}

pub const CONFIG: &[u8] = b"{}";

/// Puts an image with these layers there, as `thing:v1`. Returns the digests of the manifest and the layers.
pub fn image(mock: &MockRegistry, layers: &[Vec<u8>]) -> (String, Vec<String>) {
    mock.put_blob(CONFIG);
    let digests = layers.iter().map(|bytes| mock.put_blob(bytes)).collect();
    (mock.put_manifest("thing", "v1", MANIFEST, &written(&manifest_of(CONFIG, layers))), digests)
}

/// The error as a person sees it: code, message and causes.
pub fn told(error: &RegistryError) -> String {
    let mut text = format!("{}: {error}", error.code());
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
