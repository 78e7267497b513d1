#![expect(clippy::disallowed_methods, reason = "a test owns its tasks by their handles")]
mod agents;
mod foreign;
mod programs;
mod registry;
mod sharing;
mod store;

use std::collections::BTreeMap;
use std::sync::Mutex;

use lodge_core::agent::AgentState;
use lodge_core::record::{
    AgentRow, AgentSpec, BinRecord, ImageRefRow, ImageWrite, StartRetry, ToolRecord, Write,
};
use lodge_core::{IdSource, LineageId, SandboxId, Timestamp};
use lodge_image::agentfile::{Agentfile, Builder, load_inline};
use lodge_image::oci::{Blob, Descriptor, NewBin, Platform, pack_agent, pack_bin};

use self::registry::FakeRegistry;
use super::*;

const NOW: Timestamp = Timestamp::from_ms(1_700_000_000_000);
/// Larger than one chunk of a registry.
const PROGRAM_BYTES: usize = 100_000;

/// A daemon's images, and its database.
struct ImagesWorld {
    dir: tempfile::TempDir,
    images: Arc<Images>,
    writer: lodge_store::Writer,
}

impl ImagesWorld {
    fn new() -> ImagesWorld {
        ImagesWorld::at(tempfile::tempdir().unwrap())
    }

    fn at(dir: tempfile::TempDir) -> ImagesWorld {
        let opened = lodge_store::open(&dir.path().join("daemon.db"), &[7; 64]).unwrap();
        let images = Images::of(dir.path(), Arc::new(opened.reader), Arc::new(Room::of(dir.path())));
        ImagesWorld { dir, images, writer: opened.writer }
    }

    /// The next daemon, with empty memory.
    fn again(self) -> ImagesWorld {
        let ImagesWorld { dir, images, writer } = self;
        drop((images, writer));
        ImagesWorld::at(dir)
    }

    fn record(&mut self, rows: impl IntoIterator<Item = ImageRow>) {
        let writes: Vec<Write> =
            rows.into_iter().map(|row| Write::Image(ImageWrite::Here(Box::new(row)))).collect();
        drop(self.writer.commit(&writes, ()).unwrap());
    }

    fn name(&mut self, reference: &str, digest: &str) {
        let row = ImageRefRow { reference: reference.into(), digest: digest.into(), at: NOW };
        drop(self.writer.commit(&[Write::Image(ImageWrite::Named(row))], ()).unwrap());
    }

    fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.dir.path().join("registry/blobs/sha256").join(digest.hex())
    }

    /// Changes the contents of a blob's file, and keeps its size.
    fn damage(&self, digest: &Digest) {
        overwrite(&self.blob_path(digest));
    }
}

/// Flips the first byte of a read-only file.
fn overwrite(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[0] ^= 0xff;
    let mode = std::fs::metadata(path).unwrap().permissions();
    std::fs::remove_file(path).unwrap();
    std::fs::write(path, bytes).unwrap();
    std::fs::set_permissions(path, mode).unwrap();
}

/// Incompressible bytes.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    std::iter::repeat_with(next).take(len).collect()
}

fn bin_for(name: &str, platform: Platform, seed: u64) -> PackedImage {
    let mut new = NewBin {
        name: name.into(),
        description: Some(format!("what {name} is")),
        usage: Some(format!("{name} --help")),
        labels: BTreeMap::new(),
        programs: Vec::new(),
    };
    // The layer is read back into memory, so that tests can put the image anywhere.
    let (dir, program) = (tempfile::tempdir().unwrap(), noise(seed, PROGRAM_BYTES));
    let blobs = Blobs::open(&dir.path().join("registry")).unwrap();
    let packed =
        new.pack_program(&blobs, &blobs.pins(), program.len() as u64, &mut program.as_slice()).unwrap();
    new.programs.push((platform, packed));
    let mut packed = pack_bin(&new).unwrap();
    let layer = std::fs::read_dir(dir.path().join("registry/blobs/sha256")).unwrap().next().unwrap();
    let layer = std::fs::read(layer.unwrap().path()).unwrap();
    packed.blobs.insert(0, Blob::new("application/vnd.oci.image.layer.v1.tar+gzip", layer));
    packed
}

fn bin(name: &str) -> PackedImage {
    bin_for(name, Platform::here(), name.bytes().map(u64::from).sum())
}

/// The largest blob of an image, which takes the longest to transfer.
fn largest(packed: &PackedImage) -> Digest {
    packed.blobs.iter().max_by_key(|blob| blob.bytes.len()).unwrap().digest
}

/// Pins each tool to a given digest.
struct PinnedTools(BTreeMap<String, String>);

impl Builder for PinnedTools {
    fn image(&self, _: &str) -> Result<Option<LoadedAgentfile>, Box<dyn std::error::Error + Send + Sync>> {
        Ok(None)
    }

    fn pin(&self, reference: &str) -> Result<Option<String>, Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.0.get(reference).cloned())
    }

    fn refuses(&self, _: &Agentfile) -> Vec<(u32, &'static str)> {
        Vec::new()
    }
}

/// An agent with one tool, which is pinned as `pinned`.
fn agent(pinned: &str) -> PackedImage {
    let source = format!(
        "FROM scratch\nMODEL p/m\nNAME otter\nBIN tool {}\nCONTEXT SOUL <<E\nkind\nE\n",
        pinned.split('@').next().unwrap()
    );
    let name = pinned.split('@').next().unwrap().to_owned();
    let builder = PinnedTools([(name, pinned.to_owned())].into());
    pack_agent(&load_inline(source.as_bytes(), &BTreeMap::new(), &builder).unwrap()).unwrap()
}

fn pinned(name: &str, packed: &PackedImage) -> String {
    format!("{name}@{}", packed.digest)
}

/// The row of an agent that is created from an announced image.
fn row_of(asked: &str, image: &ImageRow) -> AgentRow {
    let ImageContents::Agent(record) = &image.contents else { panic!("no agent: {image:?}") };
    let tool = |bin: &BinRecord| ToolRecord {
        name: bin.name.clone(),
        description: bin.description.clone(),
        usage: bin.usage.clone(),
        image: bin.image.clone(),
        ..ToolRecord::default()
    };
    let mut ids = IdSource::new(7);
    AgentRow {
        id: "agt_1".parse().unwrap(),
        name: "otter".into(),
        image: asked.into(),
        image_digest: image.digest.clone(),
        lineage: LineageId::new(&mut ids, NOW),
        sandbox: SandboxId::new(&mut ids, NOW),
        state: AgentState::Pulling,
        failure_detail: None,
        incarnation: 1,
        runs: 1,
        uid: None,
        created_at: NOW,
        started_at: None,
        spec: AgentSpec { tools: record.bins.iter().map(tool).collect(), ..AgentSpec::default() },
        retry: StartRetry::default(),
        next: None,
    }
}

/// Records the progress of each part.
#[derive(Default)]
struct RecordedProgress {
    planned: Mutex<BTreeMap<Digest, u64>>,
    moved: Mutex<BTreeMap<Digest, u64>>,
}

impl TransferWatch for RecordedProgress {
    fn planned(&self, part: &Descriptor) {
        self.planned.lock().unwrap().insert(part.digest, part.size);
    }

    fn there(&self, part: &Descriptor) {
        self.planned(part);
    }

    fn moved(&self, part: &Digest, bytes: u64) {
        self.moved.lock().unwrap().insert(*part, bytes);
    }
}

impl RecordedProgress {
    fn has_moved(&self, part: &Digest) -> bool {
        self.moved.lock().unwrap().get(part).is_some_and(|bytes| *bytes > 0)
    }

    fn has_all(&self, part: &Digest) -> bool {
        let planned = self.planned.lock().unwrap().get(part).copied();
        planned.is_some() && self.moved.lock().unwrap().get(part).copied() == planned
    }
}

/// Waits for a condition, with the time limit of a test.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    };
    let waited = tokio::time::timeout(std::time::Duration::from_secs(60), waiting).await;
    assert!(waited.is_ok(), "never: {what}");
}
