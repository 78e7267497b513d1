//! Building an image: an Agentfile with its parents, checked and flattened.

use std::collections::BTreeMap;
use std::path::Path;

use lodge_core::record::ImageRecord;
use lodge_image::agentfile::{self, Agentfile, BinSource, Builder, LoadError, Loaded};
use lodge_proto::ErrorBody;
use sha2::{Digest, Sha256};

use super::hex;
use super::record::{loaded_of, record_of};
use crate::api::images;
use crate::shell::Shell;

/// As NAME has it.
const NAME_MAX: usize = 63;

/// Where an Agentfile is.
pub(in crate::api) enum Source<'a> {
    /// A directory or a file of this host.
    Path(&'a str),
    /// Its text, without a directory.
    Content(&'a str),
}

/// An image that may be recorded. Its digest is that of everything in it.
#[derive(Debug, Clone)]
pub(in crate::api) struct Built {
    pub record: ImageRecord,
    pub digest: String,
    /// What it is called where nobody says so: its own NAME, or that of the directory that it was built from. Never
    /// the NAME of a parent, whose name would then mean its child.
    pub called: Option<String>,
}

/// Builds an image. Every mistake in it is told at once.
pub(in crate::api) fn build(
    shell: &Shell,
    source: &Source<'_>,
    args: &BTreeMap<String, String>,
) -> Result<Built, ErrorBody> {
    let builder = Stored { shell };
    let loaded = match source {
        Source::Path(path) => agentfile::load_dir(Path::new(path), args, &builder),
        Source::Content(content) => agentfile::load_inline(content.as_bytes(), args, &builder),
    };
    let loaded = loaded.map_err(|error| load_error(&error))?;
    let called = loaded.own_name.clone().or_else(|| match source {
        Source::Path(path) => directory_name(Path::new(path)),
        Source::Content(_) => None,
    });
    let record = record_of(loaded);
    let digest = format!("sha256:{}", hex(&Sha256::digest(lodge_store::encode(&record))));
    Ok(Built { record, digest, called })
}

/// The name of the directory of an Agentfile, made one that NAME allows.
fn directory_name(path: &Path) -> Option<String> {
    let real = path.canonicalize().ok()?;
    let directory = if real.is_dir() { real.as_path() } else { real.parent()? };
    plain_name(&directory.file_name()?.to_string_lossy())
}

fn plain_name(text: &str) -> Option<String> {
    let plain = text.chars().map(|letter| match letter {
        letter if letter.is_ascii_alphanumeric() => letter,
        '.' | '_' | '-' => letter,
        _other => '-',
    });
    let name: String = plain.skip_while(|letter| !letter.is_ascii_alphanumeric()).take(NAME_MAX).collect();
    (!name.is_empty()).then_some(name)
}

/// Parents come from the local store.
struct Stored<'a> {
    shell: &'a Shell,
}

impl Builder for Stored<'_> {
    fn image(&self, reference: &str) -> Result<Option<Loaded>, Box<dyn std::error::Error + Send + Sync>> {
        match images::find(self.shell, reference) {
            Ok(found) => Ok(Some(loaded_of(found.record))),
            Err(error) if error.data.code == "image.not_found" => Ok(None),
            Err(error) => Err(error.message.into()),
        }
    }

    /// What the grammar has and this release does not do is refused, not ignored.
    fn refuses(&self, file: &Agentfile) -> Vec<(u32, &'static str)> {
        let mut refused: Vec<(u32, &'static str)> = Vec::new();
        if let Some(runtime) = &file.runtime
            && let BinSource::Image(_) = runtime.value
        {
            refused.push((runtime.line, "a RUNTIME from an image (use `host:/path/program`)"));
        }
        for bin in &file.bins {
            if let BinSource::Image(_) = bin.source {
                refused.push((bin.line, "a BIN from an image (use `host:program`)"));
            }
        }
        refused.extend(file.mcps.iter().map(|item| (item.line, "MCP")));
        refused.extend(file.skills.iter().map(|item| (item.line, "SKILL")));
        refused.extend(file.services.iter().map(|item| (item.line, "SERVICE")));
        refused.extend(file.schedules.iter().map(|item| (item.line, "SCHEDULE")));
        refused.extend(file.ons.iter().map(|item| (item.line, "ON")));
        refused
    }
}

fn load_error(error: &LoadError) -> ErrorBody {
    let (code, hint) = match error {
        LoadError::Mistakes(errors) if errors.iter().all(|error| error.code() == "agentfile.unsupported") => {
            ("agentfile.unsupported", "remove these lines, and run it again".to_owned())
        }
        // They are listed with a hint each.
        LoadError::Mistakes(_) => ("agentfile.invalid", "mend these lines, and run it again".to_owned()),
        LoadError::Source(_) => ("agentfile.unreadable", error.hint()),
        LoadError::UndeclaredArgs { .. } => ("agentfile.undeclared_arg", error.hint()),
    };
    ErrorBody::new(code, error.to_string()).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_directory_is_made_one_that_an_image_can_have() {
        for (text, name) in [
            ("coder", Some("coder")),
            ("My Agent (2)", Some("My-Agent--2-")),
            (".hidden", Some("hidden")),
            ("-_-", None),
            ("ü", None),
        ] {
            assert_eq!(plain_name(text).as_deref(), name, "{text}");
        }
        let long = plain_name(&"a".repeat(200)).unwrap();
        assert_eq!(
            lodge_image::Tagged::read(&long).unwrap().as_str(),
            format!("{}:latest", "a".repeat(NAME_MAX))
        );
    }
}
