//! `jobs logs`: the output of a job, each byte once and in order, across restarts of the daemon.
//!
//! Owns: the position in each stream, and where each stream is printed.

use lodge_proto::{JobOutput, JobOutputParams, JobView, ReadJobOutput, base64};

use super::{CommandContext, jobs};
use crate::args::JobLogsArgs;
use crate::failure::CommandFailure;
use crate::follow::DaemonClient;
use crate::screen::{self, ProgramOutput};
use crate::words::Words;

/// Most bytes per request.
const READ_BYTES: u64 = 1024 * 1024;
/// The longest wait of one request for more output. It is repeated.
const WAIT_MS: u64 = 25_000;
/// Looking for the last lines goes back so far at once.
const LOOK_BACK_BYTES: u64 = 64 * 1024;

/// What of a job is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShownStreams {
    /// Each stream where it belongs.
    Both,
    /// This one, to stdout.
    Only(JobOutputStream),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobOutputStream {
    Stdout,
    Stderr,
    /// Both, in the order in which they were written.
    Merged,
}

impl JobOutputStream {
    fn word(self) -> &'static str {
        match self {
            JobOutputStream::Stdout => "stdout",
            JobOutputStream::Stderr => "stderr",
            JobOutputStream::Merged => "merged",
        }
    }

    /// All that was written to it.
    fn bytes(self, job: &JobView) -> u64 {
        match self {
            JobOutputStream::Stdout => job.stdout_bytes,
            JobOutputStream::Stderr => job.stderr_bytes,
            JobOutputStream::Merged => job.stdout_bytes + job.stderr_bytes,
        }
    }
}

/// Where to begin.
#[derive(Debug, Clone, Copy)]
enum OutputStart {
    Byte(u64),
    LastLines(u64),
}

/// When to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OutputEnd {
    /// With what is there now.
    Now,
    /// With the job.
    End,
}

pub(super) async fn logs(context: &CommandContext, args: JobLogsArgs) -> Result<(), CommandFailure> {
    let shown = match (args.stderr, args.merged, args.offset) {
        (true, _, _) => ShownStreams::Only(JobOutputStream::Stderr),
        (false, true, _) => ShownStreams::Only(JobOutputStream::Merged),
        (false, false, Some(_)) => ShownStreams::Only(JobOutputStream::Stdout),
        (false, false, None) => ShownStreams::Both,
    };
    let from = match (args.offset, args.tail) {
        (Some(offset), _) => OutputStart::Byte(offset),
        (None, Some(lines)) => OutputStart::LastLines(lines),
        (None, None) => OutputStart::Byte(0),
    };
    let until = if args.follow { OutputEnd::End } else { OutputEnd::Now };
    let job = jobs::one(&mut context.daemon().await?, &args.job).await?;
    show(context, &job.id, shown, from, until).await
}

/// Shows everything that a job writes, until it is over.
pub(super) async fn follow(
    context: &CommandContext,
    job: &str,
    shown: ShownStreams,
) -> Result<(), CommandFailure> {
    show(context, job, shown, OutputStart::Byte(0), OutputEnd::End).await
}

async fn show(
    context: &CommandContext,
    job: &str,
    shown: ShownStreams,
    from: OutputStart,
    until: OutputEnd,
) -> Result<(), CommandFailure> {
    let stdout = |stream| StreamPump { context, job, stream, to: screen::TerminalStream::Stdout };
    match shown {
        ShownStreams::Only(stream) => stdout(stream).run(from, until).await,
        // Where both go to one place they come in the order in which they were written.
        ShownStreams::Both if !context.words.json && screen::is_one_place() => {
            stdout(JobOutputStream::Merged).run(from, until).await
        }
        ShownStreams::Both => {
            let stderr = StreamPump {
                context,
                job,
                stream: JobOutputStream::Stderr,
                to: screen::TerminalStream::Stderr,
            };
            let stdout = stdout(JobOutputStream::Stdout);
            tokio::try_join!(stdout.run(from, until), stderr.run(from, until)).map(drop)
        }
    }
}

/// One stream on its way, on a connection of its own.
struct StreamPump<'a> {
    context: &'a CommandContext,
    job: &'a str,
    stream: JobOutputStream,
    to: screen::TerminalStream,
}

impl StreamPump<'_> {
    async fn run(&self, from: OutputStart, until: OutputEnd) -> Result<(), CommandFailure> {
        // With two connections, only one reports that the daemon went away.
        let silent = Words::new(true, self.context.words.json);
        let words = match self.to {
            screen::TerminalStream::Stdout => &self.context.words,
            screen::TerminalStream::Stderr => &silent,
        };
        let mut daemon = DaemonClient::open(&self.context.address, words).await?;
        let mut offset = match from {
            OutputStart::Byte(offset) => offset,
            OutputStart::LastLines(lines) => self.last_lines(&mut daemon, lines).await?,
        };
        let mut output = ProgramOutput::new(self.to, self.context.words.colours());
        loop {
            let part = self.read(&mut daemon, offset, READ_BYTES, until).await?;
            if part.dropped > 0 {
                output.finish().map_err(CommandFailure::output)?;
                self.report_gap(&part, offset);
            }
            if self.context.words.json {
                self.context.words.json_line(&part)?;
            } else {
                output.write(&bytes_of(&part)?).map_err(CommandFailure::output)?;
            }
            if part.end || (until == OutputEnd::Now && part.next == offset) {
                return output.finish().map_err(CommandFailure::output);
            }
            offset = part.next;
        }
    }

    async fn read(
        &self,
        daemon: &mut DaemonClient<'_>,
        offset: u64,
        limit: u64,
        until: OutputEnd,
    ) -> Result<JobOutput, CommandFailure> {
        let params = JobOutputParams {
            job: self.job.to_owned(),
            stream: Some(self.stream.word().to_owned()),
            offset: Some(offset),
            limit: Some(limit),
            wait_ms: (until == OutputEnd::End).then_some(WAIT_MS),
        };
        daemon.call_without_start::<ReadJobOutput>(params).await
    }

    fn report_gap(&self, part: &JobOutput, asked: u64) {
        if self.context.words.json {
            return;
        }
        let what = match self.stream {
            JobOutputStream::Stdout => "stdout",
            JobOutputStream::Stderr => "stderr",
            JobOutputStream::Merged => "its output",
        };
        self.context.words.print_message(&format!(
            "[{} bytes of {what} were not kept: {asked} to {}]",
            part.dropped, part.offset
        ));
    }

    /// Where the last lines begin. What was not kept has no lines.
    async fn last_lines(&self, daemon: &mut DaemonClient<'_>, lines: u64) -> Result<u64, CommandFailure> {
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
    async fn block(
        &self,
        daemon: &mut DaemonClient<'_>,
        begin: u64,
        end: u64,
    ) -> Result<Vec<(u64, u8)>, CommandFailure> {
        let (mut block, mut at) = (Vec::new(), begin);
        while at < end {
            let part = self.read(daemon, at, end - at, OutputEnd::Now).await?;
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
    context: &CommandContext,
    job: &JobView,
    stream: JobOutputStream,
    lines: u64,
) -> Result<Vec<String>, CommandFailure> {
    let pump = StreamPump { context, job: &job.id, stream, to: screen::TerminalStream::Stdout };
    let mut daemon = context.daemon().await?;
    let offset = pump.last_lines(&mut daemon, lines).await?;
    let part = pump.read(&mut daemon, offset, LOOK_BACK_BYTES, OutputEnd::Now).await?;
    let text = String::from_utf8_lossy(&bytes_of(&part)?).into_owned();
    Ok(text.lines().map(str::to_owned).collect())
}

fn bytes_of(part: &JobOutput) -> Result<Vec<u8>, CommandFailure> {
    let unreadable = || CommandFailure::refused("the daemon sent something that does not fit the API");
    match part.encoding.as_str() {
        "utf8" => Ok(part.data.clone().into_bytes()),
        "base64" => base64::decode(&part.data).ok_or_else(unreadable),
        _ => Err(unreadable()),
    }
}
