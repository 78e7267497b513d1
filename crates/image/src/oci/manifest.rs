//! Manifests and indexes.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{BadImage, LAYER_MAX, LAYERS_MAX, MANIFEST_MAX, PLATFORMS_MAX, json};
use crate::Digest;
use crate::agentfile::shown;

pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
pub const DOCKER_INDEX: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
pub const TITLE: &str = "org.opencontainers.image.title";

const SCHEMA: u64 = 2;
const MEDIA_TYPE_MAX: usize = 255;
const PLATFORM_WORD_MAX: usize = 64;
/// The default variant of arm64.
const ARM64_PLAIN: &str = "v8";

/// Some contents, as a manifest or an index names them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    pub media_type: String,
    pub digest: Digest,
    pub size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// What a program runs on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Platform {
    pub os: String,
    pub architecture: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    pub dialect: MediaDialect,
    pub artifact_type: Option<String>,
    pub config: Descriptor,
    pub layers: Vec<Descriptor>,
    pub annotations: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    pub dialect: MediaDialect,
    pub artifact_type: Option<String>,
    pub manifests: Vec<Descriptor>,
    pub annotations: BTreeMap<String, String>,
}

/// The media types of a document: registries expect the one that the document contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MediaDialect {
    #[default]
    Oci,
    /// Docker's schema 2, which is read and never made.
    Docker,
}

/// What a reference can lead to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ManifestDocument {
    Manifest(Manifest),
    Index(Index),
}

impl ManifestDocument {
    /// Reads a document, which is refused when it is too large, or says what no document may.
    pub fn read(bytes: &[u8]) -> Result<ManifestDocument, BadImage> {
        let given: ForeignDocument = json::read("the manifest", bytes)?;
        match given.schema_version {
            Some(SCHEMA) => {}
            Some(other) => {
                return Err(BadImage::new(format!(
                    "it is a manifest of version {other}, and only {SCHEMA} is read"
                )));
            }
            None => return Err(BadImage::new("it has no `schemaVersion`")),
        }
        let (is_index, dialect) = given.kind()?;
        let artifact_type = media_type_if_any("artifactType", given.artifact_type)?;
        let annotations = given.annotations.unwrap_or_default();
        if is_index {
            let manifests = descriptors(given.manifests, "manifests", PLATFORMS_MAX, MANIFEST_MAX)?;
            return Ok(ManifestDocument::Index(Index { dialect, artifact_type, manifests, annotations }));
        }
        let config = given
            .config
            .ok_or_else(|| BadImage::new("it has no config"))?
            .check("the config", MANIFEST_MAX)?;
        let layers = descriptors(given.layers, "layers", LAYERS_MAX, LAYER_MAX)?;
        Ok(ManifestDocument::Manifest(Manifest { dialect, artifact_type, config, layers, annotations }))
    }

    /// What it names: the parts that must be there for it to be whole.
    pub fn parts(&self) -> Vec<&Descriptor> {
        match self {
            ManifestDocument::Manifest(manifest) => {
                std::iter::once(&manifest.config).chain(&manifest.layers).collect()
            }
            ManifestDocument::Index(index) => index.manifests.iter().collect(),
        }
    }

    pub fn media_type(&self) -> &'static str {
        match self {
            ManifestDocument::Manifest(Manifest { dialect: MediaDialect::Oci, .. }) => MANIFEST,
            ManifestDocument::Manifest(Manifest { dialect: MediaDialect::Docker, .. }) => DOCKER_MANIFEST,
            ManifestDocument::Index(Index { dialect: MediaDialect::Oci, .. }) => INDEX,
            ManifestDocument::Index(Index { dialect: MediaDialect::Docker, .. }) => DOCKER_INDEX,
        }
    }

    /// The bytes of a document that is made here. One that was read has its own, which have its digest.
    pub fn write(&self) -> Result<Vec<u8>, BadImage> {
        let (artifact_type, annotations) = match self {
            ManifestDocument::Manifest(manifest) => (&manifest.artifact_type, &manifest.annotations),
            ManifestDocument::Index(index) => (&index.artifact_type, &index.annotations),
        };
        let (config, layers, manifests) = match self {
            ManifestDocument::Manifest(manifest) => (Some(&manifest.config), Some(&manifest.layers), None),
            ManifestDocument::Index(index) => (None, None, Some(&index.manifests)),
        };
        let written = DocumentJson {
            schema_version: SCHEMA,
            media_type: self.media_type(),
            artifact_type: artifact_type.as_deref(),
            config,
            layers: layers.map(Vec::as_slice),
            manifests: manifests.map(Vec::as_slice),
            annotations,
        };
        json::write("the manifest", &written)
    }
}

impl Descriptor {
    /// What something of which only these are known is called.
    pub fn new(media_type: impl Into<String>, digest: Digest, size: u64) -> Descriptor {
        let media_type = media_type.into();
        Descriptor {
            media_type,
            digest,
            size,
            artifact_type: None,
            platform: None,
            annotations: BTreeMap::new(),
        }
    }

    /// The name that it has in its manifest, if any.
    pub fn title(&self) -> Option<&str> {
        self.annotations.get(TITLE).map(String::as_str)
    }
}

impl Platform {
    /// Of this program.
    pub fn here() -> Platform {
        let architecture = match std::env::consts::ARCH {
            "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
            other => other,
        };
        Platform::plain(std::env::consts::OS, architecture, None)
    }

    /// Reads `os/arch` or `os/arch/variant`.
    pub fn read(text: &str) -> Result<Platform, BadImage> {
        let bad = || BadImage::new(format!("`{}` is no platform: those are like `linux/amd64`", shown(text)));
        let mut words = text.split('/');
        let (Some(os), Some(architecture), variant, None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(bad());
        };
        let platform = Platform::plain(os, architecture, variant);
        if platform.is_well_formed() { Ok(platform) } else { Err(bad()) }
    }

    /// The platforms whose programs run on this one, the best first: exactly this, the variant before it, all variants.
    pub fn suited(&self) -> impl Iterator<Item = Platform> {
        let is_arm_v7 = self.architecture == "arm" && self.variant.as_deref() == Some("v7");
        let older = is_arm_v7.then(|| "v6".to_owned());
        let variants = [self.variant.clone(), older, None];
        variants.into_iter().map(|variant| Platform { variant, ..self.clone() })
    }

    /// In the media types of OCI, also for a document that came in those of Docker.
    fn plain(os: &str, architecture: &str, variant: Option<&str>) -> Platform {
        let os = match os {
            "macos" => "darwin",
            other => other,
        };
        let (architecture, own) = match architecture {
            "x86_64" | "x86-64" => ("amd64", None),
            "aarch64" => ("arm64", None),
            "x86" | "i386" | "i686" => ("386", None),
            "powerpc64" => ("ppc64", None),
            "armhf" => ("arm", Some("v7")),
            other => (other, None),
        };
        let variant = variant.or(own).filter(|variant| !(architecture == "arm64" && *variant == ARM64_PLAIN));
        Platform {
            os: os.to_owned(),
            architecture: architecture.to_owned(),
            variant: variant.map(str::to_owned),
        }
    }

    fn is_well_formed(&self) -> bool {
        let word = |word: &str| {
            word.len() <= PLATFORM_WORD_MAX
                && word.starts_with(|c: char| c.is_ascii_alphanumeric())
                && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b))
        };
        word(&self.os) && word(&self.architecture) && self.variant.as_deref().is_none_or(word)
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        match &self.variant {
            Some(variant) => write!(f, "/{variant}"),
            None => Ok(()),
        }
    }
}

/// A document of another program. Some programs write `null` for an absent value.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ForeignDocument {
    #[serde(default)]
    schema_version: Option<u64>,
    #[serde(default)]
    media_type: Option<String>,
    #[serde(default)]
    artifact_type: Option<String>,
    #[serde(default, deserialize_with = "json::object_if_any")]
    config: Option<ForeignDescriptor>,
    #[serde(default, deserialize_with = "json::objects_if_any")]
    layers: Option<Vec<ForeignDescriptor>>,
    #[serde(default, deserialize_with = "json::objects_if_any")]
    manifests: Option<Vec<ForeignDescriptor>>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ForeignDescriptor {
    media_type: String,
    /// Read as text first, so that a refusal can say what is wrong with it.
    digest: String,
    size: i64,
    #[serde(default)]
    artifact_type: Option<String>,
    #[serde(default, deserialize_with = "json::object_if_any")]
    platform: Option<Platform>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DocumentJson<'a> {
    schema_version: u64,
    media_type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    artifact_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<&'a Descriptor>,
    #[serde(skip_serializing_if = "Option::is_none")]
    layers: Option<&'a [Descriptor]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    manifests: Option<&'a [Descriptor]>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: &'a BTreeMap<String, String>,
}

impl ForeignDocument {
    /// Whether it is an index, and whose. What could be read as both is neither: two readers would see two images.
    fn kind(&self) -> Result<(bool, MediaDialect), BadImage> {
        let by_fields = match (&self.manifests, self.config.is_some() || self.layers.is_some()) {
            (Some(_), true) => return Err(BadImage::new("it is a manifest and an index at once")),
            (Some(_), false) => Some(true),
            (None, true) => Some(false),
            (None, false) => None,
        };
        let by_name = match self.media_type.as_deref() {
            None | Some("") => None,
            Some(MANIFEST) => Some((false, MediaDialect::Oci)),
            Some(INDEX) => Some((true, MediaDialect::Oci)),
            Some(DOCKER_MANIFEST) => Some((false, MediaDialect::Docker)),
            Some(DOCKER_INDEX) => Some((true, MediaDialect::Docker)),
            Some(other) => {
                return Err(BadImage::new(format!("`{}` is no manifest that is read here", shown(other))));
            }
        };
        match (by_name, by_fields) {
            (Some((is_index, dialect)), Some(fields)) if is_index == fields => Ok((is_index, dialect)),
            (Some(_), Some(_)) => Err(BadImage::new("it is not what its `mediaType` says")),
            (Some((is_index, dialect)), None) => Ok((is_index, dialect)),
            (None, Some(is_index)) => Ok((is_index, MediaDialect::Oci)),
            (None, None) => Err(BadImage::new("it is neither a manifest nor an index")),
        }
    }
}

impl ForeignDescriptor {
    fn check(self, what: &str, size_max: u64) -> Result<Descriptor, BadImage> {
        let digest: Digest = self.digest.parse().map_err(|cause| {
            BadImage::new(format!("{what} has the digest `{}`: {cause}", shown(&self.digest)))
        })?;
        let size = u64::try_from(self.size)
            .map_err(|_| BadImage::new(format!("{what} ({digest}) has {} bytes", self.size)))?;
        if size > size_max {
            return Err(BadImage::new(format!(
                "{what} ({digest}) has {size} bytes, and at most {size_max} are taken"
            )));
        }
        let named = self.platform.filter(|given| !(given.os.is_empty() && given.architecture.is_empty()));
        let platform = named
            .map(|given| Platform { variant: given.variant.filter(|variant| !variant.is_empty()), ..given });
        if let Some(platform) = platform.as_ref().filter(|platform| !platform.is_well_formed()) {
            return Err(BadImage::new(format!(
                "{what} ({digest}) is for `{}`",
                shown(&platform.to_string())
            )));
        }
        Ok(Descriptor {
            media_type: media_type(what, self.media_type)?,
            digest,
            size,
            artifact_type: media_type_if_any("artifactType", self.artifact_type)?,
            platform,
            annotations: self.annotations.unwrap_or_default(),
        })
    }
}

fn descriptors(
    given: Option<Vec<ForeignDescriptor>>,
    what: &str,
    count_max: usize,
    size_max: u64,
) -> Result<Vec<Descriptor>, BadImage> {
    let given = given.unwrap_or_default();
    if given.len() > count_max {
        return Err(BadImage::new(format!(
            "it has {} {what}, and at most {count_max} are read",
            given.len()
        )));
    }
    given.into_iter().map(|part| part.check(&format!("one of the {what}"), size_max)).collect()
}

fn media_type_if_any(what: &str, given: Option<String>) -> Result<Option<String>, BadImage> {
    given.filter(|given| !given.is_empty()).map(|given| media_type(what, given)).transpose()
}

fn media_type(what: &str, given: String) -> Result<String, BadImage> {
    let word = |word: &str| {
        !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&b))
    };
    let bare = given.split(';').next().unwrap_or_default();
    let parameters = &given[bare.len()..];
    let is_good = given.len() <= MEDIA_TYPE_MAX
        && bare.split_once('/').is_some_and(|(kind, name)| word(kind) && word(name))
        && parameters.bytes().all(|b| (b' '..=b'~').contains(&b));
    if is_good {
        return Ok(given);
    }
    Err(BadImage::new(format!("{what} has the media type `{}`", shown(&given))))
}
