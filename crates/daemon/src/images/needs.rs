//! The images that an agent needs: its own, and those of its tools and its runtime. Each is searched in the store, then in the
//! agent's repositories of origin, then in the registry of its own name.
//!
//! An agent's repositories of origin are those of the name that it was created by, and of the other names of its image. A tool
//! that was pushed with an agent is in the same repository, by its digest.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lodge_core::record::{
    AgentRow, FileRecord, ImageContents, ImageRow, RuntimeRecord, ToolRecord, pinned_digest,
};
use lodge_engine::SandboxSettings;
use lodge_exec::FileIdentity;
use lodge_image::oci::BinImage;
use lodge_image::registry::TransferWatch;
use lodge_image::{Digest, ImageVersion, Pins, RemoteImage};

use super::image_tree::ImageTree;
use super::programs::Program;
use super::pulls::NoWatcher;
use super::{AgentNeeds, ImageError, Images, blocking};

/// Programs whose contents were checked, with the identity of each file.
pub(crate) type CheckedPrograms = BTreeMap<PathBuf, FileIdentity>;

/// A tool whose program is unpacked, with the description in its image.
#[derive(Clone)]
struct UnpackedTool {
    program: Program,
    bin: BinImage,
}

impl Images {
    /// Finds or pulls everything that an agent needs, and unpacks its programs. Dropping this future cancels, unless
    /// another caller waits for the same transfer.
    pub async fn obtain_needs(self: &Arc<Self>, row: &AgentRow) -> Result<AgentNeeds, ImageError> {
        let mut pins = self.blobs()?.pins();
        let from = self.origins(&row.image, &row.image_digest).await?;
        let mut rows = Vec::new();
        if !self.is_recorded(&row.image_digest).await? {
            let digest = digest_of(&row.image_digest)?;
            let tree = self.obtain(&pins, &digest, &from, Arc::new(NoWatcher)).await?;
            let image;
            (image, pins) = self.row_of(pins, tree, row.image.clone(), from.clone()).await?;
            rows.push(image);
        }
        let mut found: BTreeMap<Digest, UnpackedTool> = BTreeMap::new();
        let images = row.spec.tools.iter().filter_map(|tool| tool.image.as_deref());
        let runtime = row.spec.runtime.as_ref().and_then(|runtime| runtime.image.as_deref());
        for reference in images.chain(runtime) {
            let digest = pinned(reference)?;
            if found.contains_key(&digest) {
                continue;
            }
            let tree = self.tool_image(&pins, reference, &from, Arc::new(NoWatcher)).await?;
            if !self.is_recorded(&digest.to_string()).await? {
                let image;
                (image, pins) = self.row_of(pins, tree.clone(), name_of(reference), from.clone()).await?;
                rows.push(image);
            }
            found.insert(digest, self.load_tool(&pins, reference, tree, &from).await?);
        }
        let tools = row.spec.tools.iter().map(|tool| with_program(tool, &found)).collect::<Result<_, _>>()?;
        let runtime =
            row.spec.runtime.as_ref().map(|runtime| runtime_with_program(runtime, &found)).transpose()?;
        Ok(AgentNeeds { rows, tools, runtime, pins })
    }

    /// Checks that the programs of an agent match their recorded digests. Returns the checked files by path.
    pub async fn check_programs(
        self: &Arc<Self>,
        settings: &SandboxSettings,
    ) -> Result<CheckedPrograms, ImageError> {
        let tools = settings.tools.iter().filter(|tool| tool.image.is_some());
        let tools = tools.map(|tool| (tool.path.clone(), tool.digest.clone()));
        let runtime = settings.runtime.iter().filter(|runtime| runtime.image.is_some());
        let runtime = runtime.map(|runtime| (runtime.path.clone(), runtime.digest.clone()));
        let programs: Vec<(String, String)> = tools.chain(runtime).collect();
        if programs.is_empty() {
            return Ok(CheckedPrograms::new());
        }
        let images = self.clone();
        blocking(move || {
            let check = |(path, digest): (String, String)| {
                let path = PathBuf::from(path);
                images.programs.check(&path, &digest).map(|identity| (path, identity))
            };
            programs.into_iter().map(check).collect()
        })
        .await
    }

    /// Pulls the damaged or missing parts of an agent's image, if a registry is known that has them.
    pub async fn repair(self: &Arc<Self>, image: &str, digest: &str) -> Result<Pins, ImageError> {
        let pins = self.blobs()?.pins();
        let from = self.origins(image, digest).await?;
        self.obtain(&pins, &digest_of(digest)?, &from, Arc::new(NoWatcher)).await?;
        Ok(pins)
    }

    /// Reads and verifies the contents of a file of an agent's image.
    pub fn contents(&self, file: &FileRecord) -> Result<Vec<u8>, ImageError> {
        let Some(digest) = &file.digest else { return Ok(file.bytes.clone()) };
        Ok(self.blobs()?.read(&digest_of(digest)?, file.size)?)
    }

    /// Finds or pulls the tools that an image needs, and returns their rows.
    pub(super) async fn obtain_tools(
        self: &Arc<Self>,
        pins: &Pins,
        row: &ImageRow,
        from: &[RemoteImage],
        watch: &Arc<dyn TransferWatch>,
    ) -> Result<Vec<ImageRow>, ImageError> {
        let mut with = BTreeMap::new();
        for reference in references(row) {
            let digest = pinned(reference)?;
            let Entry::Vacant(place) = with.entry(digest) else { continue };
            let tree = self.tool_image(pins, reference, from, watch.clone()).await?;
            // A tool has no dependencies to pull.
            let pins = self.blobs()?.pins();
            let (row, _pins) = self.row_of(pins, tree, name_of(reference), from.to_vec()).await?;
            place.insert(row);
        }
        Ok(with.into_values().collect())
    }

    async fn tool_image(
        self: &Arc<Self>,
        pins: &Pins,
        reference: &str,
        from: &[RemoteImage],
        watch: Arc<dyn TransferWatch>,
    ) -> Result<ImageTree, ImageError> {
        let obtained = self.find_tool(pins, reference, from, watch).await;
        if let Ok(tree) = &obtained
            && tree.is_agent()
        {
            return Err(ImageError::AgentAsTool { reference: reference.to_owned() });
        }
        obtained.map_err(|error| match error.is_damage() || error.is_not_in_registry() {
            true => {
                let why = error.cause().unwrap_or_else(|| error.to_string());
                ImageError::ToolNotFound { reference: reference.to_owned(), why }
            }
            false => error,
        })
    }

    /// Finds a tool in the store, in the repositories of its agent, or in the registry of its own name.
    async fn find_tool(
        self: &Arc<Self>,
        pins: &Pins,
        reference: &str,
        from: &[RemoteImage],
        watch: Arc<dyn TransferWatch>,
    ) -> Result<ImageTree, ImageError> {
        let digest = pinned(reference)?;
        let own = RemoteImage::read(reference).ok().flatten();
        match (self.obtain(pins, &digest, from, watch.clone()).await, own) {
            (Err(_), Some(own)) => {
                self.refuse_inward(from, &own).await?;
                self.obtain(pins, &digest, &[own], watch).await
            }
            (obtained, _) => obtained,
        }
    }

    /// Refuses a registry inside this network that an image from outside names: its author could make the daemon connect to
    /// hosts that they cannot reach. An image without an origin was built here.
    pub(super) async fn refuse_inward(
        &self,
        from: &[RemoteImage],
        named: &RemoteImage,
    ) -> Result<(), ImageError> {
        if from.is_empty() || !self.registries().is_inward(named).await {
            return Ok(());
        }
        for origin in from {
            if self.registries().is_inward(origin).await {
                return Ok(());
            }
        }
        Err(ImageError::NamesInside { named: named.to_string() })
    }

    /// Obtains an image by its digest from the store, or from the first of these repositories that has it.
    pub(super) async fn obtain(
        self: &Arc<Self>,
        pins: &Pins,
        digest: &Digest,
        places: &[RemoteImage],
        watch: Arc<dyn TransferWatch>,
    ) -> Result<ImageTree, ImageError> {
        let mut failed = match self.load_complete(pins, digest).await {
            Ok(tree) => return Ok(tree),
            Err(error @ (ImageError::Missing { .. } | ImageError::Damaged { .. })) => error,
            Err(error) => return Err(error),
        };
        for place in places {
            match self.fetch_image(&place.with(ImageVersion::Digest(*digest)), watch.clone()).await {
                Ok(fetched) => {
                    fetched.tree.keep(pins);
                    return Ok(fetched.tree.clone());
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// As [`ImageTree::load_complete`], on a blocking thread: untrusted manifests are parsed and hashed.
    pub(super) async fn load_complete(
        self: &Arc<Self>,
        pins: &Pins,
        digest: &Digest,
    ) -> Result<ImageTree, ImageError> {
        let (images, digest) = (self.clone(), *digest);
        let found = tokio::task::spawn_blocking(crate::suspects::carry(move || {
            let blobs = images.blobs()?;
            let own_pins = blobs.pins();
            ImageTree::load_complete(blobs, &own_pins, &digest).map(|tree| (tree, own_pins))
        }));
        let (tree, own_pins) = found.await.map_err(ImageError::from)??;
        tree.keep(pins);
        drop(own_pins);
        Ok(tree)
    }

    async fn load_tool(
        self: &Arc<Self>,
        pins: &Pins,
        reference: &str,
        tree: ImageTree,
        from: &[RemoteImage],
    ) -> Result<UnpackedTool, ImageError> {
        match self.unpack_tool(tree).await {
            // A damaged blob is pulled again, if a registry has it.
            Err(error) if error.is_damage() => {
                let tree = self.find_tool(pins, reference, from, Arc::new(NoWatcher)).await?;
                self.unpack_tool(tree).await
            }
            unpacked => unpacked,
        }
    }

    async fn unpack_tool(self: &Arc<Self>, tree: ImageTree) -> Result<UnpackedTool, ImageError> {
        let images = self.clone();
        blocking(move || {
            let blobs = images.blobs()?;
            let bin = tree.bin(blobs)?;
            let room = |bytes| images.room.spares(bytes);
            let program = images.programs.unpack(blobs, &blobs.pins(), &bin, &room)?;
            Ok(UnpackedTool { program, bin })
        })
        .await
    }

    /// The repositories that an image may have come from: that of the requested name, then those of its other names.
    pub(super) async fn origins(&self, asked: &str, digest: &str) -> Result<Vec<RemoteImage>, ImageError> {
        let of = digest.to_owned();
        let summary = self.reader.read_few(move |store| store.image_summary(&of)).await?;
        let first = summary.as_ref().map(|summary| summary.name.clone());
        let named = summary.into_iter().flat_map(|summary| summary.refs).map(|row| row.reference);
        let mut found: Vec<RemoteImage> = Vec::new();
        for name in std::iter::once(asked.to_owned()).chain(first).chain(named) {
            if let Ok(Some(remote)) = RemoteImage::read(&name)
                && !found
                    .iter()
                    .any(|known| (&known.host, &known.repository) == (&remote.host, &remote.repository))
            {
                found.push(remote);
            }
        }
        Ok(found)
    }
}

/// The images of an image's tools and runtime.
fn references(row: &ImageRow) -> Vec<&str> {
    match &row.contents {
        ImageContents::Agent(record) => record.images().collect(),
        ImageContents::Bin(_) => Vec::new(),
    }
}

fn with_program(tool: &ToolRecord, found: &BTreeMap<Digest, UnpackedTool>) -> Result<ToolRecord, ImageError> {
    let mut tool = tool.clone();
    let Some(reference) = &tool.image else { return Ok(tool) };
    let Some(UnpackedTool { program, bin }) = found.get(&pinned(reference)?) else { return Ok(tool) };
    tool.path = text_of(&program.path)?;
    tool.digest = program.digest.to_string();
    // The Agentfile overrides the image.
    if tool.description.is_empty() {
        tool.description = bin.description.clone().unwrap_or_else(|| format!("the program `{}`", bin.name));
    }
    tool.usage = tool.usage.or_else(|| bin.usage.clone());
    Ok(tool)
}

fn runtime_with_program(
    runtime: &RuntimeRecord,
    found: &BTreeMap<Digest, UnpackedTool>,
) -> Result<RuntimeRecord, ImageError> {
    let mut runtime = runtime.clone();
    let Some(reference) = &runtime.image else { return Ok(runtime) };
    let Some(UnpackedTool { program, .. }) = found.get(&pinned(reference)?) else { return Ok(runtime) };
    (runtime.path, runtime.digest) = (text_of(&program.path)?, program.digest.to_string());
    Ok(runtime)
}

fn text_of(path: &Path) -> Result<String, ImageError> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| ImageError::PathNotText { path: path.to_owned() })
}

/// The digest of a pinned reference.
fn pinned(reference: &str) -> Result<Digest, ImageError> {
    digest_of(pinned_digest(reference).unwrap_or(reference))
}

pub(super) fn name_of(reference: &str) -> String {
    reference.split_once('@').map_or(reference, |(name, _)| name).to_owned()
}

pub(super) fn digest_of(text: &str) -> Result<Digest, ImageError> {
    text.parse().map_err(|why| ImageError::BadDigest { text: text.to_owned(), why })
}
