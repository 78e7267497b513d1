//! What a keeper reads at its start, on an inherited descriptor.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use crate::bounds::{Controllers, Limits};
use crate::secret::{KeeperSecret, SECRET_LEN, wipe};
use crate::wire::{DecodeError, FieldReader, FieldWriter};

const MAGIC: &[u8; 4] = b"LKS1";

/// A path of the host that is shown inside the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bind {
    pub source: PathBuf,
    pub target: PathBuf,
    pub read_only: bool,
    /// The file that the source was when it was checked: no other is bound. None: what is there is bound.
    pub checked: Option<FileIdentity>,
    /// Whose rights the sandbox's user has in it, as root. None: its own.
    pub owner: Option<BindOwner>,
}

impl Bind {
    /// A path that is shown and cannot be written.
    pub fn read_only(source: PathBuf, target: PathBuf) -> Bind {
        Bind { source, target, read_only: true, checked: None, owner: None }
    }

    /// The same path, only if it is the file that was checked.
    #[must_use]
    pub fn checked(self, checked: Option<FileIdentity>) -> Bind {
        Bind { checked, ..self }
    }
}

/// The owner of a path of the host, as the sandbox's user appears in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BindOwner {
    pub uid: u32,
    /// None: the group is not mapped.
    pub gid: Option<u32>,
}

impl BindOwner {
    fn put(self, put: &mut FieldWriter) {
        put.u32(self.uid).u8(self.gid.is_some().into()).u32(self.gid.unwrap_or(0));
    }

    fn take(take: &mut FieldReader<'_>) -> Result<BindOwner, DecodeError> {
        let (uid, has_gid, gid) = (take.u32()?, take.u8()?, take.u32()?);
        Ok(BindOwner { uid, gid: (has_gid != 0).then_some(gid) })
    }
}

/// Flags of a bind in a spec.
const READ_ONLY: u8 = 1;
const OWNED: u8 = 1 << 1;

/// Identifies a file and its contents: a field changes with the contents, or when another file takes its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileIdentity {
    pub dev: u64,
    pub ino: u64,
    pub size: u64,
    /// The last change of its contents or attributes, in seconds and nanoseconds. No program can set it.
    pub changed_at: (i64, i64),
}

impl FileIdentity {
    /// By what `fstat` says of an open file.
    pub fn of(meta: &Metadata) -> FileIdentity {
        let changed_at = (meta.ctime(), meta.ctime_nsec());
        FileIdentity { dev: meta.dev(), ino: meta.ino(), size: meta.size(), changed_at }
    }

    fn put(&self, put: &mut FieldWriter) {
        put.u64(self.dev).u64(self.ino).u64(self.size);
        put.u64(self.changed_at.0.cast_unsigned()).u64(self.changed_at.1.cast_unsigned());
    }

    fn take(take: &mut FieldReader<'_>) -> Result<FileIdentity, DecodeError> {
        let (dev, ino, size) = (take.u64()?, take.u64()?, take.u64()?);
        let changed_at = (take.u64()?.cast_signed(), take.u64()?.cast_signed());
        Ok(FileIdentity { dev, ino, size, changed_at })
    }
}

/// How the keeper can reach everything that an exec started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grouping {
    /// The sandbox has a cgroup of this name, on [`descriptors::CGROUP`](crate::descriptors::CGROUP).
    Cgroup { name: String },
    /// There is none, for this reason.
    None { why: String },
}

/// What of the network the sandbox reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Network {
    /// The host's own.
    Host,
    /// A loopback of its own and nothing else.
    None,
    /// The same, and these: names, `*.names`, addresses and ranges, each with an optional port, and `loopback:PORT`.
    List { allow: Vec<String> },
    /// A loopback of its own and every address that is routed in public, but none of the host's own.
    Public,
    /// The same, and private ranges.
    Lan,
}

/// The sandbox's own root, built out of the agent's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrivateRoot {
    /// The sandbox's host name.
    pub hostname: String,
    /// Directories and programs of the host that are shown read-only at their own paths.
    pub host_trees: Vec<PathBuf>,
    /// The parts of the root that programs may write to, relative to it.
    pub writable: Vec<PathBuf>,
    /// What is read beneath the files of the agent's own `/etc`, where they have nothing of the name.
    pub host_etc: Option<PathBuf>,
}

impl PrivateRoot {
    fn put(&self, put: &mut FieldWriter) {
        put.text(&self.hostname);
        let host_etc: Vec<PathBuf> = self.host_etc.iter().cloned().collect();
        for paths in [&self.host_trees, &self.writable, &host_etc] {
            put.list(paths, |put, path| {
                put.os(path.as_os_str());
            });
        }
    }

    fn take(take: &mut FieldReader<'_>) -> Result<PrivateRoot, DecodeError> {
        Ok(PrivateRoot {
            hostname: take.text()?,
            host_trees: take.list(|take| Ok(take.os()?.into()))?,
            writable: take.list(|take| Ok(take.os()?.into()))?,
            host_etc: take.list(|take| Ok(take.os()?.into()))?.pop(),
        })
    }
}

/// Everything a keeper has to know about its sandbox.
#[derive(Debug, Clone)]
pub struct KeeperSpec {
    pub sandbox: String,
    pub incarnation: u32,
    pub secret: KeeperSecret,
    /// Hidden from the sandbox, apart from what is bound back into it.
    pub state_dir: PathBuf,
    /// The agent's root, bound back at its own path.
    pub root: PathBuf,
    /// User and group of everything that runs inside, when the keeper may choose.
    pub uid: Option<u32>,
    pub binds: Vec<Bind>,
    /// Where to die, for crash tests. Empty: nowhere.
    pub failpoint: String,
    pub grouping: Grouping,
    pub network: Network,
    pub limits: Limits,
    pub controllers: Controllers,
    /// None: the sandbox sees the host's tree, with parts of it hidden.
    pub private_root: Option<PrivateRoot>,
    /// The directory for the output of commands. None: the sandbox has no commands of clients.
    pub logs: Option<PathBuf>,
}

impl KeeperSpec {
    /// The bytes contain the secret: hand them to the keeper and to nothing else.
    pub fn encode(&self) -> Vec<u8> {
        let mut put = FieldWriter::default();
        put.fixed(MAGIC).fixed(self.secret.expose());
        put.text(&self.sandbox).u32(self.incarnation);
        put.os(self.state_dir.as_os_str()).os(self.root.as_os_str());
        match self.uid {
            Some(uid) => put.u8(1).u32(uid),
            None => put.u8(0).u32(0),
        };
        put.list(&self.binds, |put, bind| {
            let flags = u8::from(bind.read_only) | if bind.owner.is_some() { OWNED } else { 0 };
            put.os(bind.source.as_os_str()).os(bind.target.as_os_str()).u8(flags);
            if let Some(owner) = bind.owner {
                owner.put(put);
            }
            if let Some(checked) = &bind.checked {
                checked.put(put);
            }
        });
        put.text(&self.failpoint);
        match &self.grouping {
            Grouping::Cgroup { name } => put.u8(1).text(name),
            Grouping::None { why } => put.u8(0).text(why),
        };
        match &self.network {
            Network::Host => put_network(&mut put, 0, &[]),
            Network::None => put_network(&mut put, 1, &[]),
            Network::List { allow } => put_network(&mut put, 2, allow),
            Network::Public => put_network(&mut put, 3, &[]),
            Network::Lan => put_network(&mut put, 4, &[]),
        }
        self.limits.put(&mut put);
        self.controllers.put(&mut put);
        match &self.private_root {
            Some(root) => root.put(put.u8(1)),
            None => drop(put.u8(0)),
        }
        // A spec without the directory ends here, as those of earlier daemons do.
        if let Some(logs) = &self.logs {
            put.os(logs.as_os_str());
        }
        put.out
    }

    /// Decodes and wipes `bytes`.
    pub fn decode(bytes: &mut [u8]) -> Result<KeeperSpec, DecodeError> {
        let spec = KeeperSpec::decode_kept(bytes);
        wipe(bytes);
        spec
    }

    fn decode_kept(bytes: &[u8]) -> Result<KeeperSpec, DecodeError> {
        let mut take = FieldReader::new(bytes);
        if &take.fixed::<4>()? != MAGIC {
            return Err(DecodeError::BadMagic);
        }
        let secret = KeeperSecret::new(take.fixed::<SECRET_LEN>()?);
        let (sandbox, incarnation) = (take.text()?, take.u32()?);
        let (state_dir, root) = (take.os()?.into(), take.os()?.into());
        let (has_uid, uid) = (take.u8()?, take.u32()?);
        let binds = take.list(|take| {
            let (source, target, flags) = (take.os()?.into(), take.os()?.into(), take.u8()?);
            let owner = if flags & OWNED != 0 { Some(BindOwner::take(take)?) } else { None };
            let checked = if take.is_empty() { None } else { Some(FileIdentity::take(take)?) };
            Ok(Bind { source, target, read_only: flags & READ_ONLY != 0, checked, owner })
        })?;
        let failpoint = take.text()?;
        let uid = (has_uid != 0).then_some(uid);
        let grouping = if take.is_empty() {
            Grouping::None { why: "none was given".to_owned() }
        } else {
            match (take.u8()?, take.text()?) {
                (0, why) => Grouping::None { why },
                (1, name) => Grouping::Cgroup { name },
                (unknown, _) => return Err(DecodeError::BadTag(unknown)),
            }
        };
        let network = if take.is_empty() {
            Network::Host
        } else {
            match (take.u8()?, take.list(|take| take.text())?) {
                (0, _) => Network::Host,
                (1, _) => Network::None,
                (2, allow) => Network::List { allow },
                (3, _) => Network::Public,
                (4, _) => Network::Lan,
                (unknown, _) => return Err(DecodeError::BadTag(unknown)),
            }
        };
        let limits = if take.is_empty() { Limits::default() } else { Limits::take(&mut take)? };
        let controllers =
            if take.is_empty() { Controllers::default() } else { Controllers::take(&mut take)? };
        let private_root = if take.is_empty() {
            None
        } else {
            match take.u8()? {
                0 => None,
                1 => Some(PrivateRoot::take(&mut take)?),
                unknown => return Err(DecodeError::BadTag(unknown)),
            }
        };
        let logs = if take.is_empty() { None } else { Some(take.os()?.into()) };
        Ok(KeeperSpec {
            sandbox,
            incarnation,
            secret,
            state_dir,
            root,
            uid,
            binds,
            failpoint,
            grouping,
            network,
            limits,
            controllers,
            private_root,
            logs,
        })
    }
}

fn put_network(put: &mut FieldWriter, kind: u8, allow: &[String]) {
    put.u8(kind).list(allow, |put, word| {
        put.text(word);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> KeeperSpec {
        let checked = FileIdentity { dev: 1, ino: 2, size: 3, changed_at: (-4, 5) };
        let bind = Bind::read_only("/a".into(), "/b".into()).checked(Some(checked));
        let other = Bind { checked: None, ..bind.clone() };
        let mapped = Bind { owner: Some(BindOwner { uid: 1000, gid: Some(100) }), ..other.clone() };
        let ungrouped =
            Bind { read_only: false, owner: Some(BindOwner { uid: 1000, gid: None }), ..bind.clone() };
        KeeperSpec {
            sandbox: "box".to_owned(),
            incarnation: 3,
            secret: KeeperSecret::new([9; SECRET_LEN]),
            state_dir: "/state".into(),
            root: "/state/agents/a/root".into(),
            uid: Some(70_000),
            binds: vec![other, mapped, ungrouped, bind],
            failpoint: String::new(),
            grouping: Grouping::Cgroup { name: "lodge-box".to_owned() },
            network: Network::List { allow: vec!["*.example.com:443".to_owned(), "10.0.0.0/8".to_owned()] },
            limits: Limits { memory_bytes: Some(1 << 30), ..Limits::default() },
            controllers: Controllers { memory: None, pids: Some("/sys/fs/cgroup/pids/x".into()) },
            private_root: Some(PrivateRoot {
                hostname: "agent".to_owned(),
                host_trees: vec!["/usr".into(), "/opt/jdk".into()],
                writable: vec!["workspace".into()],
                host_etc: Some("/state/host-etc".into()),
            }),
            logs: None,
        }
    }

    #[test]
    fn a_spec_comes_back_and_its_bytes_are_wiped() {
        let spec = sample();
        let mut bytes = spec.encode();
        let back = KeeperSpec::decode(&mut bytes).unwrap();
        assert_eq!(format!("{spec:?}"), format!("{back:?}"));
        assert_eq!(spec.secret.expose(), back.secret.expose());
        assert!(bytes.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_spec_of_a_daemon_that_knew_no_cgroups_is_one_without() {
        let spec = sample();
        let mut grouping = FieldWriter::default();
        grouping.u8(1).text("lodge-box");
        let mut bytes = spec.encode();
        let before = at(&bytes, &grouping.out);
        let back = KeeperSpec::decode(&mut bytes[..before]).unwrap();
        let grouped = Grouping::None { why: "none was given".to_owned() };
        let expected = KeeperSpec {
            grouping: grouped,
            network: Network::Host,
            limits: Limits::default(),
            controllers: Controllers::default(),
            private_root: None,
            ..spec
        };
        assert_eq!(format!("{back:?}"), format!("{expected:?}"));
        for cut in 1..grouping.out.len() {
            let mut bytes = sample().encode();
            assert!(KeeperSpec::decode(&mut bytes[..before + cut]).is_err(), "cut at {cut}");
        }
    }

    /// Where a part of the encoding begins.
    fn at(bytes: &[u8], part: &[u8]) -> usize {
        bytes.windows(part.len()).position(|window| window == part).unwrap()
    }

    #[test]
    fn a_spec_of_a_daemon_that_knew_no_networks_is_one_with_the_hosts() {
        let spec = sample();
        let mut network = FieldWriter::default();
        put_network(&mut network, 2, &["*.example.com:443".to_owned(), "10.0.0.0/8".to_owned()]);
        let mut bytes = spec.encode();
        let before = at(&bytes, &network.out);
        let back = KeeperSpec::decode(&mut bytes[..before]).unwrap();
        assert_eq!(back.network, Network::Host);
        for cut in 1..network.out.len() {
            let mut bytes = sample().encode();
            assert!(KeeperSpec::decode(&mut bytes[..before + cut]).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn every_network_comes_back() {
        let list = Network::List { allow: vec!["loopback:5432".to_owned()] };
        for network in [Network::Host, Network::None, list, Network::Public, Network::Lan] {
            let spec = KeeperSpec { network: network.clone(), ..sample() };
            assert_eq!(KeeperSpec::decode(&mut spec.encode()).unwrap().network, network);
        }
    }

    #[test]
    fn a_spec_of_a_daemon_that_knew_no_limits_is_one_without() {
        let mut limits = FieldWriter::default();
        sample().limits.put(&mut limits);
        let before = at(&sample().encode(), &limits.out);
        let back = KeeperSpec::decode(&mut sample().encode()[..before]).unwrap();
        assert_eq!((back.limits, back.controllers), (Limits::default(), Controllers::default()));
        for cut in 1..limits.out.len() {
            assert!(KeeperSpec::decode(&mut sample().encode()[..before + cut]).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn a_spec_of_a_daemon_that_knew_no_private_roots_is_one_without() {
        let mut root = FieldWriter::default();
        sample().private_root.as_ref().unwrap().put(root.u8(1));
        let before = sample().encode().len() - root.out.len();
        let back = KeeperSpec::decode(&mut sample().encode()[..before]).unwrap();
        assert_eq!(back.private_root, None);
        for cut in 1..root.out.len() {
            assert!(KeeperSpec::decode(&mut sample().encode()[..before + cut]).is_err(), "cut at {cut}");
        }
        let without = KeeperSpec { private_root: None, ..sample() };
        assert_eq!(KeeperSpec::decode(&mut without.encode()).unwrap().private_root, None);
    }

    #[test]
    fn the_log_directory_comes_back_and_earlier_daemons_name_none() {
        let logs = Some(PathBuf::from("/state/sandboxes/box/logs"));
        let spec = KeeperSpec { logs: logs.clone(), ..sample() };
        assert_eq!(KeeperSpec::decode(&mut spec.encode()).unwrap().logs, logs);
        assert_eq!(KeeperSpec::decode(&mut sample().encode()).unwrap().logs, None);
    }
}
