//! What an agent needs: its own image, and those of its tools and its runtime. Each is looked for in the store, then in the
//! repository that the agent came from, then where its own name says.
//!
//! An agent came from where the name that it was asked for leads; when that names no registry, from where the other names
//! of its image do. A tool that was pushed with an agent lies in that repository, by its digest.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lodge_core::record::{
    AgentRow, AgentSpec, FileRecord, ImageContents, ImageRow, RuntimeRecord, ToolRecord, pinned_digest,
};
use lodge_exec::FileIdentity;
use lodge_image::oci::BinImage;
use lodge_image::registry::TransferWatch;
use lodge_image::{Digest, ImageVersion, Pins, RemoteImage};

use super::programs::Program;
use super::pulls::Unwatched;
use super::whole::Whole;
use super::{ImageError, Images, Ready, blocking};

/// Programs whose contents were checked, and the files that they were in then.
pub(crate) type CheckedPrograms = BTreeMap<PathBuf, FileIdentity>;

/// A tool that is here: its program, and what its image says of it.
#[derive(Clone)]
struct Tool {
    program: Program,
    bin: BinImage,
}

impl Images {
    /// Finds or pulls everything that an agent needs, and unpacks its programs. Dropping this future cancels, unless somebody
    /// else waits for the same transfer.
    pub async fn ready(self: &Arc<Self>, row: &AgentRow) -> Result<Ready, ImageError> {
        let mut pins = self.blobs()?.pins();
        let from = self.origins(&row.image, &row.image_digest).await?;
        let mut rows = Vec::new();
        if !self.is_recorded(&row.image_digest).await? {
            let digest = digest_of(&row.image_digest)?;
            let whole = self.obtain(&pins, &digest, &from, Arc::new(Unwatched)).await?;
            let image;
            (image, pins) = self.row_of(pins, whole, row.image.clone(), from.clone()).await?;
            rows.push(image);
        }
        let mut found: BTreeMap<Digest, Tool> = BTreeMap::new();
        let images = row.spec.tools.iter().filter_map(|tool| tool.image.as_deref());
        let runtime = row.spec.runtime.as_ref().and_then(|runtime| runtime.image.as_deref());
        for reference in images.chain(runtime) {
            let digest = pinned(reference)?;
            if found.contains_key(&digest) {
                continue;
            }
            let whole = self.tool_image(&pins, reference, &from, Arc::new(Unwatched)).await?;
            if !self.is_recorded(&digest.to_string()).await? {
                let image;
                (image, pins) = self.row_of(pins, whole.clone(), name_of(reference), from.clone()).await?;
                rows.push(image);
            }
            found.insert(digest, self.tool(&pins, reference, whole, &from).await?);
        }
        let tools = row.spec.tools.iter().map(|tool| with_program(tool, &found)).collect::<Result<_, _>>()?;
        let runtime =
            row.spec.runtime.as_ref().map(|runtime| runtime_with_program(runtime, &found)).transpose()?;
        Ok(Ready { rows, tools, runtime, pins })
    }

    /// Refuses to start an agent one of whose programs is not what it was when it was recorded. What it returns are the
    /// files that were checked, by their paths.
    pub async fn check_programs(self: &Arc<Self>, spec: &AgentSpec) -> Result<CheckedPrograms, ImageError> {
        let tools = spec.tools.iter().filter(|tool| tool.image.is_some());
        let tools = tools.map(|tool| (tool.path.clone(), tool.digest.clone()));
        let runtime = spec.runtime.iter().filter(|runtime| runtime.image.is_some());
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
        self.obtain(&pins, &digest_of(digest)?, &from, Arc::new(Unwatched)).await?;
        Ok(pins)
    }

    /// The contents of a file that came with an agent, checked.
    pub fn contents(&self, file: &FileRecord) -> Result<Vec<u8>, ImageError> {
        let Some(digest) = &file.digest else { return Ok(file.bytes.clone()) };
        Ok(self.blobs()?.read(&digest_of(digest)?, file.size)?)
    }

    /// The tools that an image needs, found or pulled; each as it is recorded.
    pub(super) async fn needed(
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
            let whole = self.tool_image(pins, reference, from, watch.clone()).await?;
            // A tool has no dependencies to pull.
            let pins = self.blobs()?.pins();
            let (row, _pins) = self.row_of(pins, whole, name_of(reference), from.to_vec()).await?;
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
    ) -> Result<Whole, ImageError> {
        let obtained = self.somewhere(pins, reference, from, watch).await;
        if let Ok(whole) = &obtained
            && whole.is_agent()
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

    /// A tool: from the store, from the repositories of its agent, or from where its own name leads.
    async fn somewhere(
        self: &Arc<Self>,
        pins: &Pins,
        reference: &str,
        from: &[RemoteImage],
        watch: Arc<dyn TransferWatch>,
    ) -> Result<Whole, ImageError> {
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

    /// Refuses to go into this network because an image from outside says so: its author would have us connect where
    /// they cannot. An image that came from nowhere was built here.
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

    /// An image by its digest: from the store, or from the first of these repositories that has it.
    pub(super) async fn obtain(
        self: &Arc<Self>,
        pins: &Pins,
        digest: &Digest,
        places: &[RemoteImage],
        watch: Arc<dyn TransferWatch>,
    ) -> Result<Whole, ImageError> {
        let mut failed = match self.find_whole(pins, digest).await {
            Ok(whole) => return Ok(whole),
            Err(error @ (ImageError::Missing { .. } | ImageError::Damaged { .. })) => error,
            Err(error) => return Err(error),
        };
        for place in places {
            match self.bring(&place.with(ImageVersion::Digest(*digest)), watch.clone()).await {
                Ok(held) => {
                    held.whole.keep(pins);
                    return Ok(held.whole.clone());
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// As [`Whole::find`], off the threads that serve: manifests of strangers are read and hashed.
    pub(super) async fn find_whole(
        self: &Arc<Self>,
        pins: &Pins,
        digest: &Digest,
    ) -> Result<Whole, ImageError> {
        let (images, digest) = (self.clone(), *digest);
        let found = tokio::task::spawn_blocking(crate::suspects::carry(move || {
            let blobs = images.blobs()?;
            let held = blobs.pins();
            Whole::find(blobs, &held, &digest).map(|whole| (whole, held))
        }));
        let (whole, held) = found.await.map_err(ImageError::from)??;
        whole.keep(pins);
        drop(held);
        Ok(whole)
    }

    async fn tool(
        self: &Arc<Self>,
        pins: &Pins,
        reference: &str,
        whole: Whole,
        from: &[RemoteImage],
    ) -> Result<Tool, ImageError> {
        match self.unpacked(whole).await {
            // A damaged blob is pulled again, if a registry has it.
            Err(error) if error.is_damage() => {
                let whole = self.somewhere(pins, reference, from, Arc::new(Unwatched)).await?;
                self.unpacked(whole).await
            }
            unpacked => unpacked,
        }
    }

    async fn unpacked(self: &Arc<Self>, whole: Whole) -> Result<Tool, ImageError> {
        let images = self.clone();
        blocking(move || {
            let blobs = images.blobs()?;
            let bin = whole.bin(blobs)?;
            let room = |bytes| images.room.spares(bytes);
            let program = images.programs.unpack(blobs, &blobs.pins(), &bin, &room)?;
            Ok(Tool { program, bin })
        })
        .await
    }

    /// The repositories that an image may have come from: that of the name it was asked by, then those of its other names.
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

fn with_program(tool: &ToolRecord, found: &BTreeMap<Digest, Tool>) -> Result<ToolRecord, ImageError> {
    let mut tool = tool.clone();
    let Some(reference) = &tool.image else { return Ok(tool) };
    let Some(Tool { program, bin }) = found.get(&pinned(reference)?) else { return Ok(tool) };
    tool.path = text_of(&program.path)?;
    tool.digest = program.digest.to_string();
    // What the Agentfile says goes before what the image says.
    if tool.description.is_empty() {
        tool.description = bin.description.clone().unwrap_or_else(|| format!("the program `{}`", bin.name));
    }
    tool.usage = tool.usage.or_else(|| bin.usage.clone());
    Ok(tool)
}

fn runtime_with_program(
    runtime: &RuntimeRecord,
    found: &BTreeMap<Digest, Tool>,
) -> Result<RuntimeRecord, ImageError> {
    let mut runtime = runtime.clone();
    let Some(reference) = &runtime.image else { return Ok(runtime) };
    let Some(Tool { program, .. }) = found.get(&pinned(reference)?) else { return Ok(runtime) };
    (runtime.path, runtime.digest) = (text_of(&program.path)?, program.digest.to_string());
    Ok(runtime)
}

fn text_of(path: &Path) -> Result<String, ImageError> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| ImageError::PathNotText { path: path.to_owned() })
}

/// The digest that a pinned name has.
fn pinned(reference: &str) -> Result<Digest, ImageError> {
    digest_of(pinned_digest(reference).unwrap_or(reference))
}

pub(super) fn name_of(reference: &str) -> String {
    reference.split_once('@').map_or(reference, |(name, _)| name).to_owned()
}

pub(super) fn digest_of(text: &str) -> Result<Digest, ImageError> {
    text.parse().map_err(|why| ImageError::BadDigest { text: text.to_owned(), why })
}
