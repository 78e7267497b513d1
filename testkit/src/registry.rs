//! A registry in this process that can lie, stall and disconnect, for tests of its clients.
//!
//! It implements HTTP by hand, since no server sends invalid responses. It ends when it is dropped.

mod reply;
mod wire;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

/// The registry. Everything that can be asked of it or done to it takes `&self`, so that tests share it.
#[derive(Debug)]
pub struct MockRegistry {
    address: SocketAddr,
    shared: Arc<RegistryState>,
}

/// One request, as it came.
#[derive(Debug, Clone, Default)]
pub struct RecordedRequest {
    pub method: String,
    /// With its query.
    pub path: String,
    /// Names in small letters.
    pub headers: Vec<(String, String)>,
    /// What was sent with it, as far as it was taken.
    pub body: Vec<u8>,
    /// Bytes of the body of the answer that went out.
    pub served: u64,
}

impl RecordedRequest {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// Who is let in.
#[derive(Debug, Clone, Default)]
pub enum RegistryDoor {
    #[default]
    Everybody,
    /// Clients that send this as `Basic …`.
    Basic { login: String },
    /// Clients that send this token as `Bearer …`. The realm issues it for the login, or to any client.
    Token { realm: String, login: Option<String>, token: String },
}

/// What goes wrong with an answer. Several can at once.
#[derive(Debug, Clone)]
pub enum RegistryFault {
    /// This is answered instead.
    Answer { status: u16, headers: Vec<(String, String)>, body: Vec<u8> },
    /// The connection ends after this many bytes of the answer's body.
    CutAt(u64),
    /// The answer stalls after this many bytes of its body.
    StallAt(u64),
    /// One byte of the answer's body comes each time.
    Trickle(Duration),
    /// Nothing is answered at all, once the request was read.
    Silence,
    /// The connection ends after this many bytes of the request's body. They are kept.
    TakeOnly(u64),
    /// Sends other bytes, with their correct length.
    Body(Vec<u8>),
    /// Announces another length.
    Length(u64),
    /// A header is added, or replaced.
    Header(String, String),
    /// Bytes without end come, and no length.
    Endless,
    /// Sends the whole blob, regardless of the requested range.
    NoRanges,
}

/// How often something goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultCount {
    Next(u32),
    Always,
}

#[derive(Debug, Default)]
struct RegistryState {
    state: Mutex<RegistryTables>,
    ended: Mutex<bool>,
    ending: Condvar,
}

#[derive(Debug, Default)]
struct RegistryTables {
    door: RegistryDoor,
    blobs: BTreeMap<String, Arc<Vec<u8>>>,
    /// By repository and tag or digest: the media type and the digest.
    manifests: BTreeMap<(String, String), (String, String)>,
    uploads: BTreeMap<String, Vec<u8>>,
    rules: Vec<FaultRule>,
    seen: Vec<RecordedRequest>,
}

#[derive(Debug)]
struct FaultRule {
    method: String,
    part: String,
    left: Option<u32>,
    fault: RegistryFault,
}

impl MockRegistry {
    pub fn start() -> io::Result<MockRegistry> {
        MockRegistry::start_at(IpAddr::V4(Ipv4Addr::LOCALHOST))
    }

    /// Listens at an address of this machine, such as `127.0.0.2`.
    pub fn start_at(address: IpAddr) -> io::Result<MockRegistry> {
        let listener = TcpListener::bind((address, 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::<RegistryState>::default();
        let served = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if served.has_ended() {
                    return;
                }
                let shared = Arc::clone(&served);
                if let Ok(stream) = stream {
                    // A client that goes away is none of our trouble.
                    thread::spawn(move || wire::serve(&shared, stream).ok());
                }
            }
        });
        Ok(MockRegistry { address, shared })
    }

    /// `host:port`, as references have it.
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn set_door(&self, door: RegistryDoor) {
        self.shared.state().door = door;
    }

    /// Makes answers to requests go wrong whose path contains `part`.
    pub fn fault(&self, method: &str, part: &str, times: FaultCount, fault: RegistryFault) {
        let left = match times {
            FaultCount::Next(left) => Some(left),
            FaultCount::Always => None,
        };
        let rule = FaultRule { method: method.to_owned(), part: part.to_owned(), left, fault };
        self.shared.state().rules.push(rule);
    }

    pub fn forget_faults(&self) {
        self.shared.state().rules.clear();
    }

    /// Returns the digest.
    pub fn put_blob(&self, bytes: &[u8]) -> String {
        self.shared.state().put(bytes.to_vec())
    }

    /// Returns the digest, by which it is there as well.
    pub fn put_manifest(&self, repository: &str, tag: &str, media_type: &str, bytes: &[u8]) -> String {
        self.shared.state().name(repository, tag, media_type, bytes.to_vec())
    }

    pub fn blob(&self, digest: &str) -> Option<Vec<u8>> {
        self.shared.state().blobs.get(digest).map(|bytes| bytes.to_vec())
    }

    /// Media type and bytes.
    pub fn manifest(&self, repository: &str, reference: &str) -> Option<(String, Vec<u8>)> {
        let state = self.shared.state();
        let (kind, digest) = state.manifests.get(&(repository.to_owned(), reference.to_owned()))?;
        Some((kind.clone(), state.blobs.get(digest)?.to_vec()))
    }

    /// Every request so far.
    pub fn seen(&self) -> Vec<RecordedRequest> {
        self.shared.state().seen.clone()
    }

    /// Requests so far whose path contains `part`.
    pub fn count(&self, method: &str, part: &str) -> usize {
        let state = self.shared.state();
        state.seen.iter().filter(|seen| seen.method == method && seen.path.contains(part)).count()
    }

    /// Bytes of bodies that went out as answers to requests whose path contains `part`.
    pub fn served(&self, part: &str) -> u64 {
        self.shared.state().seen.iter().filter(|seen| seen.path.contains(part)).map(|seen| seen.served).sum()
    }
}

impl Drop for MockRegistry {
    fn drop(&mut self) {
        *self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.ending.notify_all();
        // Wakes the thread that waits for a connection, so that it sees the end.
        drop(TcpStream::connect(self.address));
    }
}

impl RegistryState {
    fn state(&self) -> MutexGuard<'_, RegistryTables> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_ended(&self) -> bool {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says nothing, until it is over.
    fn stall(&self) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        while !*ended {
            ended = self.ending.wait(ended).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl RegistryTables {
    fn put(&mut self, bytes: Vec<u8>) -> String {
        let digest = digest(&bytes);
        self.blobs.insert(digest.clone(), Arc::new(bytes));
        digest
    }

    fn name(&mut self, repository: &str, reference: &str, kind: &str, bytes: Vec<u8>) -> String {
        let digest = self.put(bytes);
        for reference in [reference, &digest] {
            let key = (repository.to_owned(), reference.to_owned());
            self.manifests.insert(key, (kind.to_owned(), digest.clone()));
        }
        digest
    }

    /// What goes wrong with the answer to this one.
    fn faults(&mut self, method: &str, path: &str) -> Vec<RegistryFault> {
        let mut found = Vec::new();
        for rule in &mut self.rules {
            if rule.method != method || !path.contains(&rule.part) || rule.left == Some(0) {
                continue;
            }
            rule.left = rule.left.map(|left| left - 1);
            found.push(rule.fault.clone());
        }
        found
    }
}

/// As registries write it.
pub fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", lodge_proto::hex::encode(&Sha256::digest(bytes)))
}
