//! Standard input of commands: as the whole of something, or beside the text of a prompt.
//!
//! Owns: when stdin is read, and how piped text is marked in a message. Never: sending it.

use std::io::{IsTerminal, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::time::Duration;

use lodge_proto::{MESSAGE_BYTES_MAX, REQUEST_BYTES_MAX};

use crate::failure::{CommandFailure, io_words};
use crate::words::Words;

/// A user at a terminal reads after this time what the command waits for.
const SILENT_MAX: Duration = Duration::from_secs(2);
/// The shortest fence of a block, as in Markdown.
const FENCE_MIN: usize = 3;

const HOW_TO_ASK: &str = "write the text after the agent, or pipe it in: `echo hello | lodge prompt AGENT`";

const WHERE_ELSE: &str = "put large material into the agent's workspace and name the file";

/// Where the text of a prompt comes from.
#[derive(Debug, PartialEq, Eq)]
enum PromptSource {
    Stdin,
    /// The text alone, or with what is piped in.
    Words {
        text: String,
        stdin: StdinUse,
    },
}

/// Whether stdin goes with a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StdinUse {
    /// `-` requests it, whatever kind of file stdin is.
    Requested,
    /// A pipe is read. A file is not, because a shell loop may be reading its lines.
    IfPiped,
}

impl PromptSource {
    /// A `-` before or after the text requests stdin; between other words it is a part of the text.
    fn of(words: &[String]) -> PromptSource {
        match words {
            [] => PromptSource::Stdin,
            [dash] if dash == "-" => PromptSource::Stdin,
            [text @ .., dash] | [dash, text @ ..] if dash == "-" => {
                PromptSource::Words { text: text.join(" "), stdin: StdinUse::Requested }
            }
            text => PromptSource::Words { text: text.join(" "), stdin: StdinUse::IfPiped },
        }
    }
}

/// The text of a prompt: its words, stdin, or both.
pub(super) async fn prompt_text(words: &Words, given: &[String]) -> Result<String, CommandFailure> {
    match PromptSource::of(given) {
        PromptSource::Stdin if std::io::stdin().is_terminal() => {
            Err(CommandFailure::usage("there is nothing to ask").hint(HOW_TO_ASK))
        }
        PromptSource::Stdin => prompt_from_stdin().await,
        PromptSource::Words { text, .. } if text.trim().is_empty() => {
            Err(CommandFailure::usage("there is nothing to ask: the text is empty").hint(HOW_TO_ASK))
        }
        PromptSource::Words { text, stdin: StdinUse::IfPiped } if !is_piped() => Ok(text),
        PromptSource::Words { text, .. } => {
            let piped = read_piped(words).await?;
            let whole = if piped.is_empty() { text } else { with_stdin(&text, &piped) };
            check_message(&whole).map(|()| whole)
        }
    }
}

/// What was piped in, without the line end that `echo` and editors add.
async fn prompt_from_stdin() -> Result<String, CommandFailure> {
    let bytes = read_limited("the prompt from stdin", MESSAGE_BYTES_MAX, || Ok(std::io::stdin())).await?;
    let mut text = text_of(bytes)?;
    text.truncate(text.trim_end_matches(['\r', '\n']).len());
    if text.trim().is_empty() {
        return Err(CommandFailure::usage("there is nothing to ask: stdin is empty").hint(HOW_TO_ASK));
    }
    Ok(text)
}

/// Whether someone writes to stdin for this command: a pipe or a socket.
fn is_piped() -> bool {
    // A clone, so that the descriptor stays open when the file is dropped.
    let kind = std::io::stdin().as_fd().try_clone_to_owned().map(std::fs::File::from);
    let kind = kind.and_then(|file| file.metadata()).map(|meta| meta.file_type());
    kind.is_ok_and(|kind| kind.is_fifo() || kind.is_socket())
}

/// Reads stdin to its end. A user at a terminal learns what the command waits for.
async fn read_piped(words: &Words) -> Result<String, CommandFailure> {
    let read = read_limited("stdin", MESSAGE_BYTES_MAX, || Ok(std::io::stdin()));
    tokio::pin!(read);
    let bytes = tokio::select! {
        bytes = &mut read => bytes?,
        () = tokio::time::sleep(SILENT_MAX) => {
            words.progress("reading stdin to its end; `</dev/null` sends the text alone");
            read.await?
        }
    };
    text_of(bytes)
}

fn text_of(bytes: Vec<u8>) -> Result<String, CommandFailure> {
    let refused = |why: &str| {
        CommandFailure::refused("stdin is not text").because(why).hint(
            "pipe in UTF-8 text; put other files into a directory that the agent has (`lodge run -v`) and name them in \
             the prompt, or send the text alone with `</dev/null`",
        )
    };
    match String::from_utf8(bytes) {
        Ok(text) if text.contains('\0') => Err(refused("it contains zero bytes")),
        Ok(text) => Ok(text),
        Err(error) => Err(refused(&format!("byte {} is not UTF-8", error.utf8_error().valid_up_to() + 1))),
    }
}

/// A message of a text and a marked block. The fence is longer than any in the block, so the block cannot end early.
fn with_stdin(text: &str, piped: &str) -> String {
    let (mut longest, mut run) = (0, 0);
    for letter in piped.chars() {
        run = if letter == '`' { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    let fence = "`".repeat(FENCE_MIN.max(longest + 1));
    let line_end = if piped.ends_with('\n') { "" } else { "\n" };
    format!("{text}\n\nStandard input:\n{fence}stdin\n{piped}{line_end}{fence}")
}

/// Refuses a message that no daemon accepts, before it is sent.
pub(crate) fn check_message(text: &str) -> Result<(), CommandFailure> {
    if text.len() <= MESSAGE_BYTES_MAX {
        return Ok(());
    }
    let what = format!("the message has {} bytes; {MESSAGE_BYTES_MAX} is the most", text.len());
    Err(CommandFailure::refused(what).hint(WHERE_ELSE).with_code("turn.too_large"))
}

/// All of stdin, which must be text.
pub(super) async fn read_stdin(what: &str) -> Result<String, CommandFailure> {
    let what = format!("{what} from stdin");
    let bytes = read_bytes(&what, || Ok(std::io::stdin())).await?;
    String::from_utf8(bytes)
        .map_err(|_| CommandFailure::refused(format!("could not read {what}")).because("it is not UTF-8"))
}

/// Reads everything, up to the size that a call can carry.
pub(super) async fn read_bytes<R: Read>(
    what: &str,
    open: impl FnOnce() -> std::io::Result<R> + Send + 'static,
) -> Result<Vec<u8>, CommandFailure> {
    read_limited(what, REQUEST_BYTES_MAX, open).await
}

/// Reads everything, up to a limit: a device has no end. On its own thread, so that Ctrl-C works while a pipe is silent.
async fn read_limited<R: Read>(
    what: &str,
    bytes_max: usize,
    open: impl FnOnce() -> std::io::Result<R> + Send + 'static,
) -> Result<Vec<u8>, CommandFailure> {
    let read = tokio::task::spawn_blocking(move || {
        let mut bytes = Vec::new();
        open()?.take(bytes_max as u64 + 1).read_to_end(&mut bytes).map(|_| bytes)
    });
    let read = read.await.map_err(std::io::Error::other).flatten();
    let could_not = |cause| CommandFailure::usage(format!("could not read {what}")).because(io_words(&cause));
    let bytes = read.map_err(could_not)?;
    if bytes.len() > bytes_max {
        return Err(
            CommandFailure::refused(format!("{what} has more than {bytes_max} bytes")).hint(WHERE_ELSE)
        );
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(words: &[&str]) -> PromptSource {
        PromptSource::of(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_dash_at_an_end_of_the_text_requests_stdin_and_one_within_it_is_text() {
        let text = |text: &str, stdin| PromptSource::Words { text: text.to_owned(), stdin };
        assert_eq!(source(&[]), PromptSource::Stdin);
        assert_eq!(source(&["-"]), PromptSource::Stdin);
        assert_eq!(source(&["sum", "up"]), text("sum up", StdinUse::IfPiped));
        assert_eq!(source(&["sum", "up", "-"]), text("sum up", StdinUse::Requested));
        assert_eq!(source(&["-", "sum", "up"]), text("sum up", StdinUse::Requested));
        assert_eq!(source(&["3", "-", "4"]), text("3 - 4", StdinUse::IfPiped));
    }

    #[test]
    fn no_line_of_the_block_can_end_it() {
        let check = |piped: &str, fence: &str| {
            let whole = with_stdin("look", piped);
            let block = whole.strip_prefix("look\n\nStandard input:\n").unwrap();
            assert_eq!(block, format!("{fence}stdin\n{}\n{fence}", piped.trim_end_matches('\n')));
            assert!(!piped.contains(fence));
        };
        check("plain", "```");
        check("with a line end\n", "```");
        check("```\ncode\n```\n", "````");
        check("``````", "```````");
    }
}
