//! `image export` and `import`: images as one file.

use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use lodge_proto::client::{ClientError, Login, Target};
use lodge_proto::transfer::{self, TransferError};
use lodge_proto::{ImagesImported, KnownCode, error_code};
use serde::Serialize;
use tokio::io::AsyncRead;

use super::{CommandContext, request_id};
use crate::args::{ImageExportArgs, ImageImportArgs};
use crate::failure::{CommandExit, CommandFailure, FailureReport, io_words};
use crate::progress::{TransferMeter, bytes_text};
use crate::render::counted;
use crate::screen;
use crate::words::{Words, prompt_for, put};

/// The daemon's refusal of names without consent.
const NAME_CLAIMED: KnownCode = error_code!("image.name_claimed");

/// What an import may do with names.
#[derive(Debug, Clone, Copy)]
struct ImportConsent {
    moves: bool,
    claims: bool,
}

/// A file that was written.
#[derive(Debug, Serialize)]
struct ExportedFile {
    file: String,
    size_bytes: u64,
}

pub(super) async fn export(context: &CommandContext, args: ImageExportArgs) -> Result<(), CommandFailure> {
    let words = &context.words;
    let to_file = "write it to a file: `-o FILE`";
    let Some(path) = args.output else {
        let Some(mut stdout) = screen::binary() else {
            return Err(CommandFailure::usage("the archive is not written to a terminal").hint(to_file));
        };
        if words.json {
            return Err(CommandFailure::usage("the archive and JSON cannot both go to stdout").hint(to_file));
        }
        let bytes = fetch(context, &args.refs.images, "exporting", &mut stdout).await?;
        words.print_note(&format!("exported {}: {}", args.refs.images.join(", "), bytes_text(bytes)));
        return Ok(());
    };
    let shown = path.display().to_string();
    let mut outlet = ArchiveOutput::open(&path).map_err(|cause| cannot_write(&shown, &cause))?;
    let size_bytes = fetch(context, &args.refs.images, &format!("exporting to {shown}"), &mut outlet).await?;
    outlet.finish().map_err(|cause| cannot_write(&shown, &cause))?;
    if words.json {
        return words.json(&ExportedFile { file: shown, size_bytes });
    }
    words.print_note(&format!(
        "exported {} to {shown}: {}",
        args.refs.images.join(", "),
        bytes_text(size_bytes)
    ));
    Ok(())
}

fn cannot_write(file: &str, cause: &std::io::Error) -> CommandFailure {
    CommandFailure::refused(format!("could not write `{file}`")).because(io_words(cause))
}

async fn fetch(
    context: &CommandContext,
    images: &[String],
    doing: &str,
    to: &mut impl Write,
) -> Result<u64, CommandFailure> {
    // An ordinary connection finds out whether there is a daemon, and starts one.
    drop(context.daemon().await?);
    let asked: Vec<String> = images.iter().map(|image| format!("image={}", escaped(image))).collect();
    let path = format!("/v1/images/export?{}", asked.join("&"));
    let (target, login) = (&context.address.target, context.address.login());
    let meter = TransferMeter::new(&context.words, doing);
    meter
        .during(async {
            let mut body = transfer::get(target, &login, &path).await?;
            let mut bytes = 0;
            loop {
                let piece = match body.next().await {
                    Ok(Some(piece)) => piece,
                    Ok(None) => break,
                    Err(ClientError::Lost) => return Err(why_cut(target, &login, &path).await),
                    Err(other) => return Err(other.into()),
                };
                to.write_all(&piece).map_err(CommandFailure::output)?;
                bytes += piece.len() as u64;
                meter.set_bytes(bytes, 0);
            }
            to.flush().map_err(CommandFailure::output)?;
            Ok(bytes)
        })
        .await
}

/// A body that ended before its end. What was written of it is of no use.
fn cut(error: ClientError) -> CommandFailure {
    match error {
        ClientError::Lost => CommandFailure::new(
            CommandExit::NoDaemon,
            "the daemon closed the connection before the archive was complete",
        )
        .hint("run the command again"),
        other => other.into(),
    }
}

/// Why an archive is incomplete. A daemon that finds damage in the middle of an archive cannot report it there. A
/// repeated request reports it before the archive begins.
async fn why_cut(target: &Target, login: &Login, path: &str) -> CommandFailure {
    match transfer::get(target, login, path).await {
        Err(refused @ ClientError::Refused(_)) => refused.into(),
        Ok(_) | Err(_) => cut(ClientError::Lost),
    }
}

/// Escaped for a URL.
fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~:/@".contains(&byte);
    let escape = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(escape).collect()
}

/// Where an archive goes. A file has its name only when it is whole; what is no file is written to directly.
#[derive(Debug)]
enum ArchiveOutput {
    Whole { file: std::fs::File, unfinished: UnfinishedFile, path: PathBuf },
    Direct(std::fs::File),
}

/// Goes when it is not finished.
#[derive(Debug)]
struct UnfinishedFile(PathBuf);

impl Drop for UnfinishedFile {
    fn drop(&mut self) {
        // After the rename the file no longer exists here.
        drop(std::fs::remove_file(&self.0));
    }
}

impl ArchiveOutput {
    fn open(path: &Path) -> std::io::Result<ArchiveOutput> {
        // A link stays one: what it leads to is replaced.
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        if std::fs::metadata(&path).is_ok_and(|meta| !meta.is_file()) {
            return std::fs::OpenOptions::new().write(true).open(&path).map(ArchiveOutput::Direct);
        }
        let name = path.file_name().ok_or(std::io::ErrorKind::IsADirectory)?;
        let random = request_id().map_err(|_| std::io::Error::other("/dev/urandom cannot be read"))?;
        let unfinished = path.with_file_name(format!(".{}.{}", name.to_string_lossy(), &random[..12]));
        let file = std::fs::OpenOptions::new().write(true).create_new(true).open(&unfinished)?;
        Ok(ArchiveOutput::Whole { file, unfinished: UnfinishedFile(unfinished), path })
    }

    fn finish(self) -> std::io::Result<()> {
        match self {
            ArchiveOutput::Whole { file, unfinished, path } => {
                file.sync_all()?;
                std::fs::rename(&unfinished.0, path)
            }
            ArchiveOutput::Direct(_) => Ok(()),
        }
    }
}

impl Write for ArchiveOutput {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            ArchiveOutput::Whole { file, .. } | ArchiveOutput::Direct(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            ArchiveOutput::Whole { file, .. } | ArchiveOutput::Direct(file) => file.flush(),
        }
    }
}

pub(super) async fn import(context: &CommandContext, args: ImageImportArgs) -> Result<(), CommandFailure> {
    let ImageImportArgs { path, moves, yes } = args;
    let allowed = ImportConsent { moves, claims: yes };
    let imported = if path.as_os_str() == "-" {
        if std::io::stdin().is_terminal() {
            return Err(CommandFailure::usage("there is no archive to read")
                .hint("give a file, or an archive on stdin: `lodge image import FILE`"));
        }
        let stdin = std::io::stdin().as_fd().try_clone_to_owned();
        let stdin =
            stdin.map_err(|cause| CommandFailure::usage("could not read stdin").because(io_words(&cause)))?;
        send(context, "stdin", &mut tokio::fs::File::from_std(stdin.into()), 0, allowed).await?
    } else {
        match send_file(context, &path, allowed).await {
            Err(CommandFailure::Told(report))
                if report.code.as_deref() == Some(NAME_CLAIMED.as_str())
                    && super::can_ask(&context.words) =>
            {
                confirm_names(&context.words, &report).await?;
                send_file(context, &path, ImportConsent { claims: true, ..allowed }).await?
            }
            sent => sent?,
        }
    };
    if context.words.json {
        return context.words.json(&imported);
    }
    context.words.print_note(&imported_text(&imported));
    let images = imported.images.iter().map(|image| &image.digest);
    let digests = images.chain(imported.bins.iter().map(|bin| &bin.digest));
    put(&digests.map(|digest| format!("{digest}\n")).collect::<String>())
}

/// Asks whether names that were refused may be taken.
async fn confirm_names(words: &Words, refused: &FailureReport) -> Result<(), CommandFailure> {
    words.print_message(&refused.what);
    refused.because.iter().for_each(|cause| words.print_message(&format!("  {cause}")));
    prompt_for("take these names? [y]es or [N]o: ");
    match super::read_line().await?.as_deref().map(str::trim) {
        Some("y" | "Y" | "yes") => Ok(()),
        Some(_) => Err(CommandFailure::refused("nothing was imported")),
        None => {
            words.print_message("");
            Err(CommandFailure::refused("nothing was imported"))
        }
    }
}

async fn send_file(
    context: &CommandContext,
    path: &Path,
    allowed: ImportConsent,
) -> Result<ImagesImported, CommandFailure> {
    let shown = path.display().to_string();
    let cannot = |cause: std::io::Error| {
        CommandFailure::usage(format!("could not read `{shown}`")).because(io_words(&cause))
    };
    let mut file = tokio::fs::File::open(path).await.map_err(cannot)?;
    let meta = file.metadata().await.map_err(cannot)?;
    if meta.is_dir() {
        return Err(CommandFailure::usage(format!("`{shown}` is a directory"))
            .hint(format!("pack it: `tar -C {shown} -c . | lodge image import -`")));
    }
    send(context, &shown, &mut file, meta.len(), allowed).await
}

async fn send(
    context: &CommandContext,
    from: &str,
    body: &mut (impl AsyncRead + Unpin),
    total_bytes: u64,
    allowed: ImportConsent,
) -> Result<ImagesImported, CommandFailure> {
    drop(context.daemon().await?);
    let (target, login) = (&context.address.target, context.address.login());
    let meter = TransferMeter::new(&context.words, format!("importing {from}"));
    let sent = |bytes: u64| meter.set_bytes(bytes, total_bytes.max(bytes * u64::from(total_bytes > 0)));
    let path = format!("/v1/images/import?move={}&claim={}", allowed.moves, allowed.claims);
    let answer = meter.during(transfer::post(target, &login, &path, body, sent)).await;
    let answer = answer.map_err(|error| match error {
        TransferError::Client(error) => cut(error),
        TransferError::Source { cause } => {
            CommandFailure::refused(format!("could not read `{from}`")).because(io_words(&cause))
        }
    })?;
    serde_json::from_value(answer).map_err(|cause| ClientError::Garbled { cause }.into())
}

fn imported_text(imported: &ImagesImported) -> String {
    let counts = [(imported.images.len(), "image"), (imported.bins.len(), "tool")];
    let counts = counts.into_iter().filter(|(count, _)| *count > 0);
    let counts: Vec<String> = counts.map(|(count, what)| counted(count, what)).collect();
    if counts.is_empty() {
        return "it contains no image and no tool".to_owned();
    }
    let mut names: Vec<&str> =
        imported.images.iter().flat_map(|image| &image.named).map(String::as_str).collect();
    names.extend(imported.bins.iter().flat_map(|bin| &bin.named).map(String::as_str));
    let named = if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) };
    let along = match usize::try_from(imported.tools).unwrap_or(usize::MAX) {
        0 => String::new(),
        tools => format!(", with {}", counted(tools, "tool")),
    };
    format!("imported {}{named}{along}", counts.join(" and "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_import_tells_the_names_of_the_archive_and_what_came_along() {
        let image = |named: &str| {
            serde_json::json!({"digest": "sha256:1", "refs": ["old:v1", named], "named": [named], "size_bytes": 1,
                "agents": 0, "created_at": "", "complete": true})
        };
        let told = |answer| imported_text(&serde_json::from_value(answer).expect("an answer"));
        let one = serde_json::json!({"images": [image("new:v2")], "bins": [], "tools": 2});
        assert_eq!(told(one), "imported 1 image: new:v2, with 2 tools");
        let two = serde_json::json!({"images": [image("a:1"), image("b:1")], "bins": [], "tools": 0});
        assert_eq!(told(two), "imported 2 images: a:1, b:1");
    }

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("lodge-archive-{}-{name}", std::process::id()));
        std::fs::create_dir(&dir).expect("a directory");
        dir
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(dir).expect("a directory").flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_there_when_it_is_whole_and_else_as_it_was() {
        let dir = scratch("whole");
        let path = dir.join("a.tar");
        std::fs::write(&path, "before").unwrap();
        let mut outlet = ArchiveOutput::open(&path).unwrap();
        outlet.write_all(b"half").unwrap();
        drop(outlet);
        assert_eq!(
            (names(&dir), std::fs::read(&path).unwrap()),
            (vec!["a.tar".to_owned()], b"before".to_vec())
        );
        let mut outlet = ArchiveOutput::open(&path).unwrap();
        outlet.write_all(b"all").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"before");
        outlet.finish().unwrap();
        assert_eq!((names(&dir), std::fs::read(&path).unwrap()), (vec!["a.tar".to_owned()], b"all".to_vec()));
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_link_stays_and_what_is_no_file_is_not_replaced() {
        let dir = scratch("link");
        std::fs::write(dir.join("real"), "before").unwrap();
        std::os::unix::fs::symlink("real", dir.join("link")).unwrap();
        let mut outlet = ArchiveOutput::open(&dir.join("link")).unwrap();
        outlet.write_all(b"all").unwrap();
        outlet.finish().unwrap();
        assert!(dir.join("link").is_symlink());
        assert_eq!(std::fs::read(dir.join("real")).unwrap(), b"all");
        assert!(matches!(ArchiveOutput::open(Path::new("/dev/null")), Ok(ArchiveOutput::Direct(_))));
        assert!(ArchiveOutput::open(&dir).is_err());
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn nothing_of_a_name_is_read_as_part_of_an_address() {
        assert_eq!(escaped("r.example:5000/a/b_c:v1@sha256:ab"), "r.example:5000/a/b_c:v1@sha256:ab");
        assert_eq!(escaped("a&b=c#d e\r\n%é"), "a%26b%3Dc%23d%20e%0D%0A%25%C3%A9");
    }
}
