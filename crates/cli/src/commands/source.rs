//! The source of an agent or an image: a path, stdin, or an image.

use lodge_proto::error_code;
use std::path::Path;

use super::CommandContext;
use super::stdin::read_stdin;
use crate::failure::{CommandFailure, io_words};

const AGENTFILE_NAME: &str = "Agentfile";

/// How the source is passed to the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AgentSource {
    /// Of this machine, which is the daemon's.
    Path(String),
    Content(String),
    Image(String),
}

/// What `text` means: what is there on disk goes before an image of that name.
pub(super) async fn source(context: &CommandContext, text: &str) -> Result<AgentSource, CommandFailure> {
    if text != "-" && !Path::new(text).exists() && !is_place(text) {
        return Ok(AgentSource::Image(text.to_owned()));
    }
    place(context, text).await
}

/// Like [`source`], for what must be built.
pub(super) async fn place(context: &CommandContext, text: &str) -> Result<AgentSource, CommandFailure> {
    match text {
        "-" => Ok(AgentSource::Content(read_stdin("the Agentfile").await?)),
        text if context.address.is_this_machine() => Ok(AgentSource::Path(local_path(text)?)),
        // Paths of this machine mean nothing to a daemon on another one, so the text travels.
        text => Ok(AgentSource::Content(agentfile_text(Path::new(text))?)),
    }
}

/// A refusal of the daemon to find an image, for a person who may have meant a directory.
pub(super) fn source_not_found(text: &str, failure: CommandFailure) -> CommandFailure {
    const WHAT_ELSE: &str = "give a directory with an Agentfile, an Agentfile, `-` to read one from stdin, or an image: one of `lodge image ls`, or `registry.example/name:tag`";
    // An address is no directory, and the daemon says what is wrong with it.
    let is_address = text.contains("://");
    if (failure.is(error_code!("image.not_found")) || failure.is(error_code!("image.bad_ref"))) && !is_address
    {
        let what = format!("there is no directory or Agentfile `{text}`, and no image of that name");
        return CommandFailure::refused(what).hint(WHAT_ELSE).with_code("image.not_found");
    }
    // A text with a port or a tag is not a directory.
    let could_be_place = !text.contains(':');
    if could_be_place
        && (failure.is(error_code!("registry.unreachable")) || failure.is(error_code!("registry.not_found")))
    {
        let host = text.split('/').next().unwrap_or_default();
        return failure.and_hint(&format!(
            "there is no directory or Agentfile `{text}` here, so it was looked up in the registry `{host}`"
        ));
    }
    failure
}

/// Whether an image name contains a registry: the part before the first `/` is a host.
pub(super) fn names_registry(text: &str) -> bool {
    text.split_once('/').is_some_and(|(host, _)| host == "localhost" || host.contains(['.', ':']))
}

/// Whether a text can only mean a place on disk.
fn is_place(text: &str) -> bool {
    text.is_empty() || text.starts_with(['/', '.', '~']) || text.ends_with(['/', '.'])
}

fn local_path(text: &str) -> Result<String, CommandFailure> {
    let path = std::fs::canonicalize(text).map_err(|cause| {
        CommandFailure::refused(format!("there is no Agentfile at `{text}`"))
            .because(io_words(&cause))
            .hint("give a directory with an Agentfile, an Agentfile, or `-` to read one from stdin")
    })?;
    utf8(&path)
}

fn agentfile_text(path: &Path) -> Result<String, CommandFailure> {
    let file = if path.is_dir() { path.join(AGENTFILE_NAME) } else { path.to_owned() };
    std::fs::read_to_string(&file).map_err(|cause| {
        CommandFailure::refused(format!("could not read `{}`", file.display())).because(io_words(&cause))
    })
}

pub(super) fn utf8(path: &Path) -> Result<String, CommandFailure> {
    path.to_str()
        .map(str::to_owned)
        .ok_or_else(|| CommandFailure::usage(format!("`{}` is not written in UTF-8", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_be_a_directory_is_reported_as_none_when_no_registry_has_it() {
        let told = |text: &str, code: &str| {
            let failure = CommandFailure::refused("what failed").hint("what to do").with_code(code);
            let CommandFailure::Told(report) = source_not_found(text, failure) else { panic!("not told") };
            (report.what, report.hint.unwrap_or_default())
        };
        let (what, hint) = told("hello.d/x", "registry.unreachable");
        assert_eq!(what, "what failed");
        assert!(
            hint.starts_with("what to do; there is no directory or Agentfile `hello.d/x` here"),
            "{hint}"
        );
        assert_eq!(told("box:5000/x", "registry.not_found").1, "what to do");
        assert_eq!(told("hello.d/x", "registry.denied").1, "what to do");
        let (what, hint) = told("exmaples/hello", "image.not_found");
        assert_eq!(what, "there is no directory or Agentfile `exmaples/hello`, and no image of that name");
        assert!(hint.starts_with("give a directory"), "{hint}");
    }

    #[test]
    fn a_registry_is_named_by_a_host_before_the_first_slash() {
        for name in
            ["localhost/x", "localhost:5000/x", "registry.example/a/x:v1", "box:5000/x", "[::1]:5000/x"]
        {
            assert!(names_registry(name), "{name}");
        }
        for name in ["x", "x:v1", "a/x", "examples/hello", "x.y", "sha256:abcdef", "stock/rg:latest"] {
            assert!(!names_registry(name), "{name}");
        }
    }

    #[test]
    fn only_what_could_be_a_name_is_taken_for_an_image() {
        for place in ["", ".", "..", "./x", "../x", "/x", "~/x", "x/", "x/."] {
            assert!(is_place(place), "{place}");
        }
        for name in ["x", "x:v1", "a/x", "registry.example/a/x:v1", "sha256:abcdef"] {
            assert!(!is_place(name), "{name}");
        }
    }
}
