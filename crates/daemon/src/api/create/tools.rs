//! Programs of the host, as they are found when an agent is created, and those of images, which are found when it starts.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lodge_core::record::{
    BinImageRecord, BinRecord, HostProgramRecord, ImageRecord, ImageRow, RuntimeRecord, ToolRecord,
    pinned_digest,
};
use lodge_image::agentfile::{builtin, tool_lines};
use lodge_image::registry::TransferWatch;
use lodge_image::{Digest, Pins};
use lodge_proto::ErrorBody;

use super::ImageResolver;
use crate::api::methods::internal;
use crate::host_trees::{HOST_PATH, can_run, trees_of};
use crate::shell::Shell;

const BIN_NOT_FOUND: &str = "bin.not_found";
/// Where no `host:` program can live: a sandbox has its own.
const NOT_PROGRAMS: [&str; 4] = ["/proc", "/sys", "/dev", "/run"];
/// What a model reads about the tool of SHELL.
const SHELL_DESCRIPTION: &str = "Runs a command line with the ordinary utilities of a Unix system.";
const SHELL_USAGE: &str = "`{\"args\": [\"-c\", \"ls -l | head -n 20\"]}` runs one command line, with pipes, redirections and `&&`. \
    It starts in your workspace each time: use `cd dir && …` in the same command line. The exit code is that of the last command.";

/// The tools of an agent. Of several that this host lacks all are reported, each with its line in the Agentfile.
pub(super) fn find_tools(shell: &Shell, record: &ImageRecord) -> Result<Vec<ToolRecord>, ErrorBody> {
    let (mut found, mut lacking) = (Vec::new(), Vec::new());
    for bin in &record.bins {
        match find_tool(shell, bin) {
            Ok(tool) => found.push(tool),
            Err(error) if bin.image.is_some() => return Err(error),
            Err(error) => lacking.push((bin, error)),
        }
    }
    let Some((_, first)) = lacking.first() else { return Ok(found) };
    // A tool of a parent has no line here.
    let lines = tool_lines(&record.agentfile);
    let lines: Vec<String> = lacking
        .iter()
        .filter_map(|(bin, error)| {
            let line = lines.get(&bin.name)?;
            Some(format!("Agentfile:{line}: {}", error.message))
        })
        .collect();
    Err(match lacking.len() {
        _ if lines.is_empty() => first.clone(),
        1 => first.clone().because(lines.join("\n")),
        count => ErrorBody::new(BIN_NOT_FOUND, format!("this host lacks {count} programs of BIN lines"))
            .because(lines.join("\n"))
            .hint("install those programs on this host, or remove the BIN lines"),
    })
}

/// A tool of an agent. One of an image has a place only once it was pulled.
pub(in crate::api) fn find_tool(shell: &Shell, bin: &BinRecord) -> Result<ToolRecord, ErrorBody> {
    let mut tool = match (&bin.image, &bin.builtin) {
        (Some(image), _) => image_tool(shell, bin, image)?,
        (None, Some(program)) => builtin_tool(bin, program)?,
        (None, None) => host_tool(shell, bin)?,
    };
    if bin.shell {
        // A shell is called in its own way, whatever program it is.
        (tool.shell, tool.usage) = (true, Some(SHELL_USAGE.to_owned()));
        if bin.description.is_empty() {
            tool.description = SHELL_DESCRIPTION.to_owned();
        }
    }
    Ok(tool)
}

/// A program that ships with the daemon. It is part of every daemon's runtime, so it has neither a path nor a digest of its own.
fn builtin_tool(bin: &BinRecord, program: &str) -> Result<ToolRecord, ErrorBody> {
    let Some(builtin) = builtin(program) else {
        // The image was built by a later release.
        return Err(ErrorBody::new(
            BIN_NOT_FOUND,
            format!("BIN {}: there is no program `builtin:{program}`", bin.name),
        )
        .hint("update lodged, or remove the BIN line"));
    };
    let described = Some(bin.description.as_str()).filter(|text| !text.is_empty());
    Ok(ToolRecord {
        name: bin.name.clone(),
        source: format!("builtin:{program}"),
        safe: bin.safe || builtin.safe,
        description: described.unwrap_or(builtin.description).to_owned(),
        usage: Some(bin.usage.clone().unwrap_or_else(|| builtin.usage.to_owned())),
        builtin: Some(program.to_owned()),
        ..ToolRecord::default()
    })
}

/// What the Agentfile does not say of a tool its image may: now if it is here, else when it was pulled.
fn image_tool(shell: &Shell, bin: &BinRecord, image: &str) -> Result<ToolRecord, ErrorBody> {
    let known = match pinned_digest(image) {
        Some(digest) => {
            shell.reader.here(|store| store.bin_image(digest)).map_err(internal)?.unwrap_or_default()
        }
        None => BinImageRecord::default(),
    };
    let described = [&bin.description, &known.description].into_iter().find(|text| !text.is_empty());
    Ok(ToolRecord {
        name: bin.name.clone(),
        source: image.to_owned(),
        path: String::new(),
        digest: String::new(),
        safe: bin.safe,
        description: described.cloned().unwrap_or_default(),
        usage: bin.usage.clone().or(known.usage),
        image: Some(image.to_owned()),
        ..ToolRecord::default()
    })
}

/// Finds a host program and records where it is and what it is.
fn host_tool(shell: &Shell, bin: &BinRecord) -> Result<ToolRecord, ErrorBody> {
    let missing = |why: String| {
        ErrorBody::new(BIN_NOT_FOUND, format!("BIN {}: {why}", bin.name))
            .hint("install that program on this host, or remove the BIN line")
    };
    let path = find(&bin.host).ok_or_else(|| missing(absent(&bin.host)))?;
    let real = path.canonicalize().unwrap_or_else(|_| path.clone());
    let hidden = [&path, &real].into_iter().any(|path| is_hidden(shell, path));
    if hidden {
        let path = real.display();
        return Err(missing(format!("`{path}` is not visible inside a sandbox")).hint(
            "host programs may live anywhere but in /proc, /sys, /dev, /run and Lodge's state directory",
        ));
    }
    let digest = digest_of(&path).map_err(|error| missing(unreadable(&path, &error)))?;
    let host = HostProgramRecord {
        trees: trees_of(&path, &shell.config.data_dir)
            .iter()
            .map(|tree| tree.display().to_string())
            .collect(),
    };
    let path = path.display().to_string();
    let description = if bin.description.is_empty() {
        format!("the program `{}`", bin.host)
    } else {
        bin.description.clone()
    };
    Ok(ToolRecord {
        name: bin.name.clone(),
        source: format!("host:{}", bin.host),
        path,
        digest,
        safe: bin.safe,
        description,
        usage: bin.usage.clone(),
        host: Some(host),
        ..ToolRecord::default()
    })
}

/// Whether no sandbox may see what is at this path.
fn is_hidden(shell: &Shell, path: &Path) -> bool {
    let state = &shell.config.data_dir;
    path.starts_with(state) || NOT_PROGRAMS.iter().any(|place| path.starts_with(place))
}

/// Finds the program that is an agent's runtime. It is shown to the sandbox by itself, so it may live anywhere.
pub(super) fn find_runtime(program: &str) -> Result<RuntimeRecord, ErrorBody> {
    let missing = |why: String| {
        ErrorBody::new("runtime.not_found", format!("RUNTIME: {why}"))
            .hint("install that program on this host, or remove RUNTIME to use the stock runtime")
    };
    let path = find(program).ok_or_else(|| missing(absent(program)))?;
    // The real path, so that a link that is changed later leads nowhere else.
    let path = path.canonicalize().map_err(|error| missing(unreadable(&path, &error)))?;
    let digest = digest_of(&path).map_err(|error| missing(unreadable(&path, &error)))?;
    let path =
        path.to_str().ok_or_else(|| missing(format!("`{}` is not written in UTF-8", path.display())))?;
    Ok(RuntimeRecord { path: path.to_owned(), digest, ..host_runtime(program) })
}

/// A runtime as an image names it, wherever that program is.
pub(in crate::api) fn host_runtime(program: &str) -> RuntimeRecord {
    RuntimeRecord { source: format!("host:{program}"), ..RuntimeRecord::default() }
}

/// A runtime that is in an image, before that was pulled.
pub(in crate::api) fn image_runtime(image: &str) -> RuntimeRecord {
    let (source, image) = (image.to_owned(), Some(image.to_owned()));
    RuntimeRecord { source, image, ..RuntimeRecord::default() }
}

/// A runtime that was named beside the image: `host:program`, or an image of its own with what holds that.
pub(in crate::api) fn runtime_named(
    shell: &Shell,
    given: &str,
    watch: Arc<dyn TransferWatch>,
) -> Result<(RuntimeRecord, Vec<ImageRow>, Option<Pins>), ErrorBody> {
    if let Some(program) = given.strip_prefix("host:") {
        return Ok((find_runtime(program)?, Vec::new(), None));
    }
    let shelf = ImageResolver::new(shell, watch)?;
    let image = shelf.bin(given)?;
    let (with, pins) = shelf.taken();
    Ok((image_runtime(&image), with, Some(pins)))
}

/// Why the program that a line with `host:` names cannot be found.
pub(super) fn missing_program(program: &str) -> Option<String> {
    find(program).is_none().then(|| absent(program))
}

/// A program of this host by its path, or by its name where programs are.
fn find(program: &str) -> Option<PathBuf> {
    let candidates: Vec<PathBuf> = if program.starts_with('/') {
        vec![PathBuf::from(program)]
    } else if program.is_empty() || program.contains('/') {
        Vec::new()
    } else {
        HOST_PATH.iter().map(|dir| Path::new(dir).join(program)).collect()
    };
    candidates.into_iter().find(|path| can_run(path))
}

fn absent(program: &str) -> String {
    match Path::new(program).metadata() {
        Ok(found) if program.starts_with('/') && found.is_dir() => {
            format!("`{program}` is a directory, not a program")
        }
        Ok(_) if program.starts_with('/') => {
            format!("`{program}` is not executable: `chmod +x {program}` makes it so")
        }
        Ok(_) | Err(_) => format!("there is no program `{program}` on this host"),
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> String {
    format!("`{}` could not be read: {error}", path.display())
}

fn digest_of(path: &Path) -> std::io::Result<String> {
    Digest::of_rest(&mut std::fs::File::open(path)?).map(|digest| digest.to_string())
}
