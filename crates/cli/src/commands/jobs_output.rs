//! `jobs logs`: what a job wrote, each byte once and in order, across restarts of the daemon.
//!
//! Owns: where in a stream one is, and which stream goes where.

use lodge_proto::{JobOutput, JobOutputParams, JobView, ReadJobOutput, base64};

use super::{Context, jobs};
use crate::args::JobLogsArgs;
use crate::failure::Failure;
use crate::follow::Daemon;
use crate::screen::{self, ProgramOutput};
use crate::words::Words;

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
    let stdout = |stream| Pump { context, job, stream, to: screen::Stream::Stdout };
    match shown {
        Shown::Only(stream) => stdout(stream).run(from, until).await,
        // Where both go to one place they come in the order in which they were written.
        Shown::Both if !context.words.json && screen::is_one_place() => {
            stdout(Stream::Merged).run(from, until).await
        }
        Shown::Both => {
            let stderr = Pump { context, job, stream: Stream::Stderr, to: screen::Stream::Stderr };
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
    to: screen::Stream,
}

impl Pump<'_> {
    async fn run(&self, from: From, until: Until) -> Result<(), Failure> {
        // Of two connections one tells that the daemon went away.
        let silent = Words::new(true, self.context.words.json);
        let words = match self.to {
            screen::Stream::Stdout => &self.context.words,
            screen::Stream::Stderr => &silent,
        };
        let mut daemon = Daemon::open(&self.context.address, words).await?;
        let mut offset = match from {
            From::Byte(offset) => offset,
            From::LastLines(lines) => self.last_lines(&mut daemon, lines).await?,
        };
        let mut output = ProgramOutput::new(self.to, self.context.words.colours());
        loop {
            let part = self.read(&mut daemon, offset, READ_BYTES, until).await?;
            if part.dropped > 0 {
                output.finish().map_err(Failure::output)?;
                self.tell_dropped(&part, offset);
            }
            if self.context.words.json {
                self.context.words.json_line(&part)?;
            } else {
                output.write(&bytes_of(&part)?).map_err(Failure::output)?;
            }
            if part.end || (until == Until::Now && part.next == offset) {
                return output.finish().map_err(Failure::output);
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
        daemon.look::<ReadJobOutput>(params).await
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
    let pump = Pump { context, job: &job.id, stream, to: screen::Stream::Stdout };
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
