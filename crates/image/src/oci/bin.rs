//! Tools as images: one program for each platform.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};

use serde::{Deserialize, Serialize};

use super::layer::{ProgramLayer, is_tar, read_file};
use super::manifest::{Descriptor, Index, Manifest, ManifestDocument, MediaDialect, Platform, TITLE};
use super::{BadImage, Blob, MANIFEST_MAX, PLATFORMS_MAX, PackedImage, StreamError, json};
use crate::agentfile::{names, shown};
use crate::{Blobs, Digest, Pins};

pub const BIN: &str = "application/vnd.lodge.bin.v1";
/// Bytes of a tool's usage.
const USAGE_MAX: u64 = 64 << 10;
/// Bytes of a tool's description.
const DESCRIPTION_MAX: usize = 4 << 10;
const PATH_MAX: usize = 1 << 10;

/// Ours, and those that are read, too.
const PREFIXES: [&str; 3] = ["io.lodge.bin.", "io.openotters.bin.", "vnd.openotters.bin."];
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
/// Where the usage is, below the root as a program sees it.
const USAGE: &str = "/USAGE.md";
/// Bytes of a layer that holds a usage, packed and unpacked: headers and padding are small beside it.
const USAGE_LAYER_MAX: u64 = USAGE_MAX + (32 << 10);
/// What says of a manifest that it is about another one.
const ABOUT: &str = "vnd.docker.reference.type";

/// A tool to pack into an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewBin {
    pub name: String,
    pub description: Option<String>,
    pub usage: Option<String>,
    pub labels: BTreeMap<String, String>,
    /// The program for each platform, as [`NewBin::pack_program`] made it.
    pub programs: Vec<(Platform, ProgramLayer)>,
}

impl NewBin {
    /// All checks that are possible before a program is packed.
    pub fn check(&self) -> Result<(), BadImage> {
        check_texts(&self.name, self.description.as_deref())?;
        if self.usage.as_ref().is_some_and(|usage| usage.len() as u64 > USAGE_MAX) {
            return Err(BadImage::new(format!("its usage is longer than {USAGE_MAX} bytes")));
        }
        if self.usage.is_some() && self.name == bare(USAGE) {
            return Err(BadImage::new(format!("the program `{}` has the name of its usage file", self.name)));
        }
        let is_own = |key: &&String| PREFIXES.iter().any(|prefix| key.starts_with(prefix));
        match self.labels.keys().find(is_own) {
            Some(own) => {
                Err(BadImage::new(format!("`{}` cannot be a label: it says what the tool is", shown(own))))
            }
            None => Ok(()),
        }
    }

    /// Packs a program of `size` bytes into the store while it is read: it is never in memory as a whole.
    pub fn pack_program(
        &self,
        blobs: &Blobs,
        pins: &Pins,
        size: u64,
        contents: &mut dyn Read,
    ) -> Result<ProgramLayer, StreamError> {
        self.check()?;
        ProgramLayer::of_program(blobs, pins, &self.name, size, contents)
    }
}

/// A tool, as an image has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BinImage {
    pub name: String,
    pub description: Option<String>,
    pub usage: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub platforms: Vec<BinPlatform>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BinPlatform {
    pub platform: Platform,
    /// Of its manifest.
    pub digest: Digest,
    /// The layers that hold the program, in order.
    pub layers: Vec<Descriptor>,
    /// Where the program is in them, without a leading `/`.
    pub path: String,
}

impl BinImage {
    /// The program that suits `host` best.
    pub fn choose(&self, host: &Platform) -> Option<&BinPlatform> {
        host.suited().find_map(|wanted| self.platforms.iter().find(|found| found.platform == wanted))
    }
}

/// Makes an image of a tool: the same programs are the same image, whenever and wherever it is made.
pub fn pack_bin(new: &NewBin) -> Result<PackedImage, BadImage> {
    new.check()?;
    let annotations = annotations(new);
    let mut programs: Vec<(Platform, &ProgramLayer)> = Vec::new();
    for (platform, program) in &new.programs {
        programs.push((Platform::read(&platform.to_string())?, program));
    }
    programs.sort_by(|(a, _), (b, _)| a.cmp(b));
    check_platforms(programs.iter().map(|(platform, _)| platform))?;
    let usage = new.usage.as_ref().map(|usage| ProgramLayer::of(bare(USAGE), 0o644, usage.as_bytes()));
    let usage = usage.transpose();
    let usage = usage.map_err(|cause| BadImage::new(format!("its usage was not packed: {cause}")))?;
    let (usage, blob) = usage.unzip();
    let mut blobs: Vec<Blob> = blob.into_iter().collect();
    let mut manifests = Vec::new();
    for (platform, program) in programs {
        let (config, manifest) = pack_platform(new, &annotations, &platform, program, usage.as_ref())?;
        let mut named = manifest.descriptor();
        named.platform = Some(platform);
        manifests.push(named);
        blobs.extend([config, manifest]);
    }
    let index =
        Index { dialect: MediaDialect::Oci, artifact_type: Some(BIN.to_owned()), manifests, annotations };
    let index = document(ManifestDocument::Index(index))?;
    let digest = index.digest;
    blobs.push(index);
    Ok(PackedImage { digest, blobs })
}

fn annotations(new: &NewBin) -> BTreeMap<String, String> {
    let mut annotations = new.labels.clone();
    let mut say =
        |key: &str, value: &str| annotations.insert(format!("{}{key}", PREFIXES[0]), value.to_owned());
    say("name", &new.name);
    say("path", "/");
    if let Some(description) = &new.description {
        say("description", description);
    }
    if new.usage.is_some() {
        say("usage", USAGE);
    }
    annotations
}

/// The config and the manifest of one platform.
fn pack_platform(
    new: &NewBin,
    annotations: &BTreeMap<String, String>,
    platform: &Platform,
    program: &ProgramLayer,
    usage: Option<&ProgramLayer>,
) -> Result<(Blob, Blob), BadImage> {
    let diff_ids = std::iter::once(program).chain(usage).map(|layer| layer.diff_id);
    let config = OciImageConfig {
        architecture: &platform.architecture,
        config: RunConfig { entrypoint: [format!("/{}", new.name)], labels: annotations },
        os: &platform.os,
        rootfs: RootFs { diff_ids: diff_ids.collect(), kind: "layers" },
        variant: platform.variant.as_deref(),
    };
    let config = Blob::new(CONFIG, json::write("the config", &config)?);
    let titled = |layer: &ProgramLayer, title: &str| {
        let mut named = layer.descriptor.clone();
        named.annotations.insert(TITLE.to_owned(), title.to_owned());
        named
    };
    let mut layers = vec![titled(program, &new.name)];
    layers.extend(usage.map(|usage| titled(usage, USAGE)));
    let manifest = Manifest {
        dialect: MediaDialect::Oci,
        artifact_type: None,
        config: config.descriptor(),
        layers,
        annotations: annotations.clone(),
    };
    Ok((config, document(ManifestDocument::Manifest(manifest))?))
}

fn document(document: ManifestDocument) -> Result<Blob, BadImage> {
    Ok(Blob::new(document.media_type(), document.write()?))
}

#[derive(Serialize)]
struct OciImageConfig<'a> {
    architecture: &'a str,
    config: RunConfig<'a>,
    os: &'a str,
    rootfs: RootFs,
    #[serde(skip_serializing_if = "Option::is_none")]
    variant: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct RunConfig<'a> {
    entrypoint: [String; 1],
    labels: &'a BTreeMap<String, String>,
}

#[derive(Serialize)]
struct RootFs {
    diff_ids: Vec<Digest>,
    #[serde(rename = "type")]
    kind: &'static str,
}

/// The parts of a foreign image's config that are read.
#[derive(Deserialize, Default)]
struct ForeignConfig {
    #[serde(default)]
    architecture: Option<String>,
    #[serde(default)]
    os: Option<String>,
    #[serde(default)]
    variant: Option<String>,
    #[serde(default)]
    config: Option<ForeignRunConfig>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ForeignRunConfig {
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
}

type FetchContents<'a> = &'a mut dyn FnMut(&Descriptor) -> io::Result<Vec<u8>>;

/// Reads a tool's index with its manifests, and its usage from where they say it is. A single manifest is a tool, too: it
/// comes with an index that names it alone and has its annotations.
pub fn read_bin(
    index: &Index,
    manifests: &[(Descriptor, Manifest)],
    blob: &mut dyn FnMut(&Descriptor) -> io::Result<Vec<u8>>,
) -> Result<BinImage, BadImage> {
    let programs: Vec<_> = manifests.iter().filter(|(named, _)| !is_about(named)).collect();
    let said = match programs.first() {
        None => return Err(BadImage::new("it has no program for any platform")),
        Some((_, first)) => read_description(index, first, blob)?,
    };
    let path = program_path(&said)?;
    let mut platforms = Vec::new();
    for (named, manifest) in &programs {
        let platform = match &named.platform {
            Some(platform) => Platform::read(&platform.to_string())?,
            None => config_of(manifest, blob)?.platform()?,
        };
        let layers: Vec<Descriptor> =
            manifest.layers.iter().filter(|layer| is_tar(&layer.media_type)).cloned().collect();
        if layers.is_empty() {
            return Err(BadImage::new(format!("there are no layers for {platform}")));
        }
        platforms.push(BinPlatform { platform, digest: named.digest, layers, path: path.clone() });
    }
    check_platforms(platforms.iter().map(|found| &found.platform))?;
    Ok(BinImage {
        name: said.name,
        description: said.description,
        usage: usage(&programs, &said.usage, blob)?,
        labels: said.labels,
        platforms,
    })
}

/// What an image says of its tool.
struct ToolDescription {
    name: String,
    path: String,
    description: Option<String>,
    usage: String,
    labels: BTreeMap<String, String>,
}

impl ToolDescription {
    /// `None` when these are not the annotations of a tool.
    fn of(annotations: &BTreeMap<String, String>) -> Option<ToolDescription> {
        let say = |key: &str| {
            let found = PREFIXES.iter().find_map(|prefix| annotations.get(&format!("{prefix}{key}")));
            found.filter(|value| !value.is_empty()).cloned()
        };
        let is_label = |key: &&String| !PREFIXES.iter().any(|prefix| key.starts_with(prefix));
        let labels = annotations.iter().filter(|(key, _)| is_label(key));
        Some(ToolDescription {
            name: say("name")?,
            path: say("path").unwrap_or_else(|| "/".to_owned()),
            description: say("description"),
            usage: say("usage").unwrap_or_else(|| USAGE.to_owned()),
            labels: labels.map(|(key, value)| (key.clone(), value.clone())).collect(),
        })
    }
}

/// From the index, a manifest, or the labels of a config, for tools that cannot annotate.
fn read_description(
    index: &Index,
    first: &Manifest,
    blob: FetchContents<'_>,
) -> Result<ToolDescription, BadImage> {
    let said =
        match ToolDescription::of(&index.annotations).or_else(|| ToolDescription::of(&first.annotations)) {
            Some(said) => said,
            None => {
                let labels = config_of(first, blob)?.config.and_then(|config| config.labels);
                labels.as_ref().and_then(ToolDescription::of).ok_or_else(|| {
                    BadImage::new(format!("it does not say by `{}name` which tool it is", PREFIXES[0]))
                })?
            }
        };
    check_texts(&said.name, said.description.as_deref())?;
    match said.labels.keys().find(|key| key.contains(char::is_control)) {
        Some(key) => Err(BadImage::new(format!("`{}` cannot be a label", shown(key)))),
        None => Ok(said),
    }
}

fn check_texts(name: &str, description: Option<&str>) -> Result<(), BadImage> {
    if !names::path_name(name) {
        return Err(BadImage::new(format!("`{}` cannot be the name of a tool", shown(name))));
    }
    let is_plain = |text: &str| text.len() <= DESCRIPTION_MAX && !text.contains(is_control);
    match description {
        Some(text) if !is_plain(text) => Err(BadImage::new(format!(
            "its description is longer than {DESCRIPTION_MAX} bytes, or no plain text"
        ))),
        Some(_) | None => Ok(()),
    }
}

fn is_control(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\t' | '\r')
}

fn program_path(said: &ToolDescription) -> Result<String, BadImage> {
    let dir: Vec<&str> = said.path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    if said.path.len() > PATH_MAX || dir.contains(&"..") || said.path.contains(char::is_control) {
        return Err(BadImage::new(format!("its programs are said to be in `{}`", shown(&said.path))));
    }
    Ok(dir.into_iter().chain([said.name.as_str()]).collect::<Vec<_>>().join("/"))
}

/// Whether a manifest is about a program, and holds none.
fn is_about(named: &Descriptor) -> bool {
    let unknown = |platform: &Platform| platform.os == "unknown" || platform.architecture == "unknown";
    named.platform.as_ref().is_some_and(unknown) || named.annotations.contains_key(ABOUT)
}

fn check_platforms<'a>(platforms: impl Iterator<Item = &'a Platform>) -> Result<(), BadImage> {
    let mut seen = BTreeSet::new();
    for platform in platforms {
        if !seen.insert(platform) {
            return Err(BadImage::new(format!("it has two programs for {platform}")));
        }
    }
    match seen.len() {
        0 => Err(BadImage::new("it has no program for any platform")),
        1..=PLATFORMS_MAX => Ok(()),
        more => {
            Err(BadImage::new(format!("it is for {more} platforms, and at most {PLATFORMS_MAX} are read")))
        }
    }
}

impl ForeignConfig {
    fn platform(&self) -> Result<Platform, BadImage> {
        let (Some(os), Some(architecture)) = (&self.os, &self.architecture) else {
            return Err(BadImage::new("it does not say which platform its program is for"));
        };
        match self.variant.as_deref() {
            None | Some("") => Platform::read(&format!("{os}/{architecture}")),
            Some(variant) => Platform::read(&format!("{os}/{architecture}/{variant}")),
        }
    }
}

fn config_of(manifest: &Manifest, blob: FetchContents<'_>) -> Result<ForeignConfig, BadImage> {
    json::read("its config", &contents(&manifest.config, MANIFEST_MAX, blob)?)
}

fn contents(named: &Descriptor, max: u64, blob: FetchContents<'_>) -> Result<Vec<u8>, BadImage> {
    if named.size > max {
        let size = named.size;
        return Err(BadImage::new(format!("{} has {size} bytes, and at most {max} are read", named.digest)));
    }
    blob(named).map_err(|cause| BadImage::new(format!("{} cannot be read: {cause}", named.digest)))
}

/// The usage of a tool: in a layer as its programs are, or, of tools of others, all of a layer by itself.
fn usage(
    programs: &[&(Descriptor, Manifest)],
    at: &str,
    blob: FetchContents<'_>,
) -> Result<Option<String>, BadImage> {
    let is_usage = |layer: &&Descriptor| layer.title().is_some_and(|title| bare(title) == bare(at));
    let Some(layer) = programs.iter().find_map(|(_, manifest)| manifest.layers.iter().find(is_usage)) else {
        return Ok(None);
    };
    let of_usage = |error: BadImage| BadImage::new(format!("its usage: {error}"));
    let bytes = if is_tar(&layer.media_type) {
        read_file(&contents(layer, USAGE_LAYER_MAX, blob)?, bare(at), USAGE_LAYER_MAX).map_err(of_usage)?
    } else {
        contents(layer, USAGE_MAX, blob)?
    };
    if bytes.len() as u64 > USAGE_MAX {
        return Err(BadImage::new(format!("its usage is longer than {USAGE_MAX} bytes")));
    }
    String::from_utf8(bytes).map(Some).map_err(|_| BadImage::new("its usage is no text"))
}

fn bare(path: &str) -> &str {
    path.trim_start_matches('/')
}
