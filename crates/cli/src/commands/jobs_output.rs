//! `jobs logs`: what a job wrote, each byte once and in order, across restarts of the daemon.
//!
//! Owns: where in a stream one is, and which stream goes where.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use lodge_proto::{JobOutput, JobOutputParams, JobView, base64};

use super::{Context, jobs};
use crate::args::JobLogsArgs;
use crate::failure::Failure;
use crate::follow::Daemon;
use crate::words::{Words, printable_output};

/// Most bytes that are asked for at once.
const READ_BYTES: u64 = 1024 * 1024;
/// How long one question for more waits; it is asked again and again.
const WAIT_MS: u64 = 25_000;
/// Looking for the last lines goes back so far at once.
const LOOK_BACK_BYTES: u64 = 64 * 1024;

/// What of a job is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    /// Each stream where it belongs.
    Both,
    /// This one, to stdout.
    Only(Stream),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
    /// Both, in the order in which they were written.
    Merged,
}

impl Stream {
    fn word(self) -> &'static str {
        match self {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
            Stream::Merged => "merged",
        }
    }

    /// All that was written to it.
    fn bytes(self, job: &JobView) -> u64 {
        match self {
            Stream::Stdout => job.stdout_bytes,
            Stream::Stderr => job.stderr_bytes,
            Stream::Merged => job.stdout_bytes + job.stderr_bytes,
        }
    }
}

/// Where to begin.
#[derive(Debug, Clone, Copy)]
enum From {
    Byte(u64),
    LastLines(u64),
}

/// When to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    /// With what is there now.
    Now,
    /// With the job.
    End,
}

pub(super) async fn logs(context: &Context, args: JobLogsArgs) -> Result<(), Failure> {
    let shown = match (args.stderr, args.merged, args.offset) {
        (true, _, _) => Shown::Only(Stream::Stderr),
        (false, true, _) => Shown::Only(Stream::Merged),
        (false, false, Some(_)) => Shown::Only(Stream::Stdout),
        (false, false, None) => Shown::Both,
    };
    let from = match (args.offset, args.tail) {
        (Some(offset), _) => From::Byte(offset),
        (None, Some(lines)) => From::LastLines(lines),
        (None, None) => From::Byte(0),
    };
    let until = if args.follow { Until::End } else { Until::Now };
    let job = jobs::one(&mut context.daemon().await?, &args.job).await?;
    show(context, &job.id, shown, from, until).await
}

/// Shows everything that a job writes, until it is over.
pub(super) async fn follow(context: &Context, job: &str, shown: Shown) -> Result<(), Failure> {
    show(context, job, shown, From::Byte(0), Until::End).await
}

async fn show(context: &Context, job: &str, shown: Shown, from: From, until: Until) -> Result<(), Failure> {
    let stdout = |stream| Pump { context, job, stream, to: Outlet::Stdout };
    match shown {
        Shown::Only(stream) => stdout(stream).run(from, until).await,
        // Where both go to one place they come in the order in which they were written.
        Shown::Both if !context.words.json && one_place() => stdout(Stream::Merged).run(from, until).await,
        Shown::Both => {
            let stderr = Pump { context, job, stream: Stream::Stderr, to: Outlet::Stderr };
            let stdout = stdout(Stream::Stdout);
            tokio::try_join!(stdout.run(from, until), stderr.run(from, until)).map(drop)
        }
    }
}

/// One stream on its way, on a connection of its own.
struct Pump<'a> {
    context: &'a Context,
    job: &'a str,
    stream: Stream,
    to: Outlet,
}

impl Pump<'_> {
    async fn run(&self, from: From, until: Until) -> Result<(), Failure> {
        // Of two connections one tells that the daemon went away.
        let silent = Words::new(true, self.context.words.json);
        let words = match self.to {
            Outlet::Stdout => &self.context.words,
            Outlet::Stderr => &silent,
        };
        let mut daemon = Daemon::open(&self.context.address, words).await?;
        let mut offset = match from {
            From::Byte(offset) => offset,
            From::LastLines(lines) => self.last_lines(&mut daemon, lines).await?,
        };
        let mut writer = Writer::new(self.to);
        loop {
            let part = self.read(&mut daemon, offset, READ_BYTES, until).await?;
            if part.dropped > 0 {
                writer.finish()?;
                self.tell_dropped(&part, offset);
            }
            if self.context.words.json {
                self.context.words.json_line(&part)?;
            } else {
                writer.write(&bytes_of(&part)?)?;
            }
            if part.end || (until == Until::Now && part.next == offset) {
                return writer.finish();
            }
            offset = part.next;
        }
    }

    async fn read(
        &self,
        daemon: &mut Daemon<'_>,
        offset: u64,
        limit: u64,
        until: Until,
    ) -> Result<JobOutput, Failure> {
        let params = JobOutputParams {
            job: self.job.to_owned(),
            stream: Some(self.stream.word().to_owned()),
            offset: Some(offset),
            limit: Some(limit),
            wait_ms: (until == Until::End).then_some(WAIT_MS),
        };
        daemon.look("job/output", params).await
    }

    fn tell_dropped(&self, part: &JobOutput, asked: u64) {
        if self.context.words.json {
            return;
        }
        let what = match self.stream {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
            Stream::Merged => "its output",
        };
        self.context
            .words
            .tell(&format!("[{} bytes of {what} were not kept: {asked} to {}]", part.dropped, part.offset));
    }

    /// Where the last lines begin. What was not kept has no lines.
    async fn last_lines(&self, daemon: &mut Daemon<'_>, lines: u64) -> Result<u64, Failure> {
        let mut end = self.stream.bytes(&jobs::one(daemon, self.job).await?);
        let mut lines_left = lines;
        // The end of the last line does not begin another.
        let mut is_last_byte = true;
        if lines == 0 {
            return Ok(end);
        }
        while end > 0 {
            let begin = end.saturating_sub(LOOK_BACK_BYTES);
            let block = self.block(daemon, begin, end).await?;
            for (offset, byte) in block.iter().rev() {
                if *byte == b'\n' && !is_last_byte {
                    lines_left -= 1;
                    if lines_left == 0 {
                        return Ok(offset + 1);
                    }
                }
                is_last_byte = false;
            }
            end = begin;
        }
        Ok(0)
    }

    /// What was kept between two places, each byte with where it is.
    async fn block(&self, daemon: &mut Daemon<'_>, begin: u64, end: u64) -> Result<Vec<(u64, u8)>, Failure> {
        let (mut block, mut at) = (Vec::new(), begin);
        while at < end {
            let part = self.read(daemon, at, end - at, Until::Now).await?;
            let bytes = bytes_of(&part)?;
            block.extend((part.offset..end).zip(bytes));
            if part.next <= at {
                break;
            }
            at = part.next;
        }
        Ok(block)
    }
}

/// The last lines of a stream, as text.
pub(crate) async fn last_lines(
    context: &Context,
    job: &JobView,
    stream: Stream,
    lines: u64,
) -> Result<Vec<String>, Failure> {
    let pump = Pump { context, job: &job.id, stream, to: Outlet::Stdout };
    let mut daemon = context.daemon().await?;
    let offset = pump.last_lines(&mut daemon, lines).await?;
    let part = pump.read(&mut daemon, offset, LOOK_BACK_BYTES, Until::Now).await?;
    let text = String::from_utf8_lossy(&bytes_of(&part)?).into_owned();
    Ok(text.lines().map(str::to_owned).collect())
}

fn bytes_of(part: &JobOutput) -> Result<Vec<u8>, Failure> {
    let unreadable = || Failure::refused("the daemon sent something that does not fit the API");
    match part.encoding.as_str() {
        "utf8" => Ok(part.data.clone().into_bytes()),
        "base64" => base64::decode(&part.data).ok_or_else(unreadable),
        _ => Err(unreadable()),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outlet {
    Stdout,
    Stderr,
}

/// Bytes as they are, except that they do not steer a terminal.
struct Writer {
    to: Outlet,
    is_terminal: bool,
    /// The beginning of a letter whose rest is in the next part.
    begun: Vec<u8>,
}

impl Writer {
    fn new(to: Outlet) -> Writer {
        let is_terminal = match to {
            Outlet::Stdout => io::stdout().is_terminal(),
            Outlet::Stderr => io::stderr().is_terminal(),
        };
        Writer { to, is_terminal, begun: Vec::new() }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if !self.is_terminal {
            return self.put(bytes);
        }
        self.begun.extend_from_slice(bytes);
        let whole = whole_letters(&self.begun);
        let rest = self.begun.split_off(whole);
        let text = String::from_utf8_lossy(&std::mem::replace(&mut self.begun, rest)).into_owned();
        self.put(printable_output(&text).as_bytes())
    }

    /// Writes what is left of a letter that will not be whole.
    fn finish(&mut self) -> Result<(), Failure> {
        let rest = std::mem::take(&mut self.begun);
        self.put(String::from_utf8_lossy(&rest).as_bytes())
    }

    fn put(&self, bytes: &[u8]) -> Result<(), Failure> {
        let written = match self.to {
            Outlet::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(bytes).and_then(|()| out.flush())
            }
            Outlet::Stderr => io::stderr().lock().write_all(bytes),
        };
        written.map_err(Failure::output)
    }
}

/// How many bytes are there without a letter at the end that is only begun.
fn whole_letters(bytes: &[u8]) -> usize {
    const LETTER_BYTES_MAX: usize = 4;
    let from = bytes.len().saturating_sub(LETTER_BYTES_MAX);
    let begins = (from..bytes.len()).rev().find(|at| bytes[*at] & 0b1100_0000 != 0b1000_0000);
    let is_cut =
        |at: &usize| std::str::from_utf8(&bytes[*at..]).is_err_and(|error| error.error_len().is_none());
    begins.filter(is_cut).unwrap_or(bytes.len())
}

/// Whether stdout and stderr are the same terminal, file or pipe.
fn one_place() -> bool {
    let place = |descriptor: &dyn AsFd| {
        let file = File::from(descriptor.as_fd().try_clone_to_owned()?);
        file.metadata().map(|meta| (meta.dev(), meta.ino()))
    };
    match (place(&io::stdout()), place(&io::stderr())) {
        (Ok(stdout), Ok(stderr)) => stdout == stderr,
        (Ok(_) | Err(_), _) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_that_is_cut_waits_for_its_rest() {
        let check = |bytes: &[u8], whole: usize| assert_eq!(whole_letters(bytes), whole, "{bytes:?}");
        check(b"", 0);
        check(b"abc", 3);
        check("é".as_bytes(), 2);
        check(&"aé".as_bytes()[..2], 1);
        check(&"€€".as_bytes()[..5], 3);
        check(&"a😀".as_bytes()[..4], 1);
        check("a😀".as_bytes(), 5);
        // What is no text is not waited with.
        check(&[0xff, 0xfe], 2);
        check(&[b'a', 0x80, 0x80, 0x80], 4);
    }
}
