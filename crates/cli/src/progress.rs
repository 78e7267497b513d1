//! Shows the progress of a transfer.
//!
//! Owns: bars on a terminal, plain lines elsewhere, and their removal. Never: the transfer itself.

use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lodge_proto::ProgressPart;
use tokio::time::{Instant, MissedTickBehavior, interval};
use unicode_width::UnicodeWidthStr;

use crate::render::{one_line, within};
use crate::screen::{Ink, ScreenOp, TerminalStream, draw, painted};
use crate::words::{Canvas, TerminalSize, Words, print_message};

/// Between two pictures on a terminal.
const REDRAW: Duration = Duration::from_millis(100);
/// Between two plain lines.
const PLAIN_LINE: Duration = Duration::from_secs(5);
/// The rate is that of so long.
const RATE_SPAN: Duration = Duration::from_secs(3);
/// With less data no rate is shown.
const RATE_TOLD_MS: u64 = 500;
/// The most samples that the rate is computed from.
const RATE_LOOKS_MAX: usize = 64;
/// Most parts that have a line of their own.
const LINES_MAX: usize = 6;
/// The widest that titles and bars get.
const TITLE_WIDTH_MAX: usize = 24;
const BAR_WIDTH_MAX: usize = 30;
/// The columns after a bar have a fixed width, so that bars do not move when the text grows.
const AFTER_WIDTH: usize = 44;
/// With less room there is no bar.
const BAR_WIDTH_MIN: usize = 6;

/// Where progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MeterOutput {
    Terminal(MeterStyle),
    /// A file or a pipe: lines, and few.
    Lines,
    Nobody,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MeterStyle {
    Plain,
    Coloured,
}

/// One transfer on its way.
#[derive(Debug)]
pub(crate) struct TransferMeter {
    /// As in `pulling otter:v1`.
    doing: String,
    audience: MeterOutput,
    state: Mutex<MeterState>,
}

#[derive(Debug)]
struct MeterState {
    parts: Vec<ProgressPart>,
    rate: TransferRate,
    told: Instant,
    /// Lines on the terminal that are ours.
    drawn: usize,
}

impl MeterState {
    /// Bytes per second. Bytes from before the first call do not count.
    fn look(&mut self, now: Instant) -> Option<u64> {
        if self.parts.is_empty() {
            return None;
        }
        self.rate.look(now, TransferTotals::of(&self.parts).moved_bytes)
    }
}

impl TransferMeter {
    pub(crate) fn new(words: &Words, doing: impl Into<String>) -> TransferMeter {
        let audience = match (words.quiet || words.json, words.canvas()) {
            (true, _) => MeterOutput::Nobody,
            (false, Canvas::Lines) => MeterOutput::Lines,
            (false, Canvas::Plain) => MeterOutput::Terminal(MeterStyle::Plain),
            (false, Canvas::Coloured) => MeterOutput::Terminal(MeterStyle::Coloured),
        };
        let now = Instant::now();
        let state = MeterState { parts: Vec::new(), rate: TransferRate::default(), told: now, drawn: 0 };
        TransferMeter { doing: one_line(&doing.into()), audience, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, MeterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Parts that are new or came further; those that are not named are as they were.
    pub(crate) fn add(&self, parts: &[ProgressPart]) {
        let mut state = self.state();
        for part in parts {
            match state.parts.iter_mut().find(|known| known.digest == part.digest) {
                Some(known) => known.clone_from(part),
                None => state.parts.push(part.clone()),
            }
        }
    }

    /// For a transfer of one item. A total of 0 is unknown.
    pub(crate) fn set_bytes(&self, done_bytes: u64, total_bytes: u64) {
        let title = String::new();
        let part = ProgressPart { digest: String::new(), title, done_bytes, total_bytes, there: false };
        self.add(&[part]);
    }

    /// Shows it until the work is over, and leaves nothing behind but what the work gives.
    pub(crate) async fn during<T>(&self, work: impl Future<Output = T>) -> T {
        // The meter is also wiped when the future is dropped.
        let _wiped = MeterGuard(self);
        if self.audience == MeterOutput::Lines {
            print_message(&self.doing);
        }
        tokio::select! {
            over = work => over,
            never = self.show() => match never {},
        }
    }

    async fn show(&self) -> std::convert::Infallible {
        let mut tick = interval(REDRAW);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let now = Instant::now();
            match self.audience {
                MeterOutput::Terminal(look) => self.draw(now, look),
                MeterOutput::Lines => self.line(now),
                MeterOutput::Nobody => {}
            }
        }
    }

    fn draw(&self, now: Instant, look: MeterStyle) {
        let mut state = self.state();
        let rate = state.look(now);
        let frame = frame(&self.doing, &state.parts, rate, TerminalSize::of_stderr());
        let dim = |text: &String| match look {
            MeterStyle::Coloured => painted(Ink::Dim, text),
            MeterStyle::Plain => text.clone(),
        };
        let lines: Vec<String> = match frame.split_last() {
            Some((total, bars)) => bars.iter().cloned().chain([dim(total)]).collect(),
            None => Vec::new(),
        };
        let before = std::mem::replace(&mut state.drawn, lines.len());
        let text = format!("{}\n", lines.join("\n"));
        draw(
            TerminalStream::Stderr,
            &[ScreenOp::Up(before), ScreenOp::Return, ScreenOp::ClearBelow, ScreenOp::Text(&text)],
        );
    }

    /// Removes the meter, so that other text can be printed.
    pub(crate) fn wipe(&self) {
        let drawn = std::mem::take(&mut self.state().drawn);
        if drawn > 0 {
            draw(TerminalStream::Stderr, &[ScreenOp::Up(drawn), ScreenOp::Return, ScreenOp::ClearBelow]);
        }
    }

    fn line(&self, now: Instant) {
        let mut state = self.state();
        let rate = state.look(now);
        if now.duration_since(state.told) >= PLAIN_LINE {
            state.told = now;
            print_message(&format!("{}: {}", self.doing, total_text(&state.parts, rate)));
        }
    }

    /// The result of a pull. There are no parts if nothing was transferred.
    pub(crate) fn pulled(&self, reference: &str) -> String {
        match TransferTotals::of(&self.state().parts) {
            TransferTotals { moved_bytes: 0, .. } => format!("{reference} is up to date"),
            TransferTotals { moved_bytes, .. } => format!("pulled {reference}: {}", bytes_text(moved_bytes)),
        }
    }
}

/// Takes the picture away when it goes.
struct MeterGuard<'a>(&'a TransferMeter);

impl Drop for MeterGuard<'_> {
    fn drop(&mut self) {
        self.0.wipe();
    }
}

/// How fast it goes, from what was seen lately.
#[derive(Debug, Default)]
struct TransferRate {
    looks: std::collections::VecDeque<(Instant, u64)>,
}

impl TransferRate {
    /// Bytes per second, once there are two samples.
    fn look(&mut self, now: Instant, bytes: u64) -> Option<u64> {
        self.looks.push_back((now, bytes));
        let old = |looked: Instant| now.duration_since(looked) > RATE_SPAN;
        // The last look before the span stays: the rate is that of the whole span.
        while self.looks.len() > RATE_LOOKS_MAX || self.looks.get(1).is_some_and(|(at, _)| old(*at)) {
            self.looks.pop_front();
        }
        let (since, before) = self.looks.front()?;
        let ms = u64::try_from(now.duration_since(*since).as_millis()).unwrap_or(u64::MAX);
        let moved = bytes.saturating_sub(*before);
        (ms >= RATE_TOLD_MS).then(|| moved.saturating_mul(1000) / ms)
    }
}

/// All parts together.
#[derive(Debug, PartialEq, Eq)]
struct TransferTotals {
    parts: usize,
    over: usize,
    there: usize,
    moved_bytes: u64,
    total_bytes: u64,
}

impl TransferTotals {
    /// What was there already is neither moved nor waited for.
    fn of(parts: &[ProgressPart]) -> TransferTotals {
        let mut sum = TransferTotals { parts: 0, over: 0, there: 0, moved_bytes: 0, total_bytes: 0 };
        for part in parts {
            if part.there {
                sum.there += 1;
                continue;
            }
            sum.parts += 1;
            sum.over += usize::from(is_over(part));
            sum.moved_bytes = sum.moved_bytes.saturating_add(part.done_bytes);
            sum.total_bytes = sum.total_bytes.saturating_add(part.total_bytes);
        }
        sum
    }
}

fn is_over(part: &ProgressPart) -> bool {
    part.there || (part.total_bytes > 0 && part.done_bytes >= part.total_bytes)
}

fn is_running(part: &ProgressPart) -> bool {
    part.done_bytes > 0 && !is_over(part)
}

/// What a terminal of this size shows: what is done, the parts that run, and all together.
fn frame(doing: &str, parts: &[ProgressPart], rate: Option<u64>, room: TerminalSize) -> Vec<String> {
    // A line that is as wide as the terminal moves the cursor in some.
    let columns = room.columns.saturating_sub(1);
    // What has scrolled away cannot be wiped.
    let lines_max = LINES_MAX.min(room.rows.saturating_sub(4));
    let named = |part: &&ProgressPart| is_running(part) && !part.title.is_empty();
    let running: Vec<&ProgressPart> = parts.iter().filter(named).collect();
    let sum = TransferTotals::of(parts);
    if sum.parts == 0 {
        return vec![within(&format!("{doing}: {}", total_text(parts, rate)), columns)];
    }
    let mut rows: Vec<MeterRow> = running.iter().take(lines_max).map(|part| MeterRow::of(part)).collect();
    rows.push(MeterRow {
        title: if sum.parts > 1 { format!("{} of {} parts", sum.over, sum.parts) } else { String::new() },
        done: sum.moved_bytes,
        total: sum.total_bytes,
        after: transfer_text(&sum, rate),
    });
    let more = running.len().saturating_sub(lines_max);
    let mut lines = vec![within(doing, columns)];
    lines.extend(laid_out(&rows, columns));
    if more > 0 {
        lines.insert(lines.len() - 1, within(&format!("  and {more} more"), columns));
    }
    lines
}

/// One line with a bar.
struct MeterRow {
    title: String,
    done: u64,
    total: u64,
    after: String,
}

impl MeterRow {
    fn of(part: &ProgressPart) -> MeterRow {
        let (done, total) = (part.done_bytes, part.total_bytes);
        MeterRow { title: one_line(&part.title), done, total, after: amount(done, total) }
    }
}

/// Bars under each other, as wide as there is room for.
fn laid_out(rows: &[MeterRow], columns: usize) -> Vec<String> {
    let widest = |width: fn(&MeterRow) -> usize| rows.iter().map(width).max().unwrap_or(0);
    let title_width = widest(|row| row.title.width()).min(TITLE_WIDTH_MAX).min(columns / 3);
    let after_width = widest(|row| row.after.width()).max(AFTER_WIDTH.min(columns / 2));
    let taken = title_width + after_width + "    ".len();
    let bar_width = columns.saturating_sub(taken).min(BAR_WIDTH_MAX);
    let line = |row: &MeterRow| {
        let title = within(&row.title, title_width);
        let gap = if title_width == 0 { 0 } else { title_width - title.width() + 1 };
        let bar = match row.total {
            0 => String::new(),
            _ if bar_width < BAR_WIDTH_MIN => String::new(),
            total => bar(row.done, total, bar_width) + " ",
        };
        within(&format!("  {title}{}{bar}{}", " ".repeat(gap), row.after), columns)
    };
    rows.iter().map(line).collect()
}

/// Full only when it is over.
fn bar(done: u64, total: u64, width: usize) -> String {
    let (done, total) = (u128::from(done.min(total)), u128::from(total.max(1)));
    let full = usize::try_from(done * width as u128 / total).unwrap_or(width).min(width);
    format!("{}{}", "█".repeat(full), "░".repeat(width - full))
}

/// All of it in words, as in `2 of 7 parts, 3.4 of 12.0 MiB, 1.2 MiB/s, 7 s left`.
fn total_text(parts: &[ProgressPart], rate: Option<u64>) -> String {
    let sum = TransferTotals::of(parts);
    if parts.is_empty() {
        return "checking what to transfer".to_owned();
    }
    let mut told = Vec::new();
    if sum.parts > 1 {
        told.push(format!("{} of {} parts", sum.over, sum.parts));
    }
    if sum.there > 0 {
        told.push(format!("{} already there", sum.there));
    }
    if sum.parts > 0 {
        told.push(transfer_text(&sum, rate));
    }
    told.join(", ")
}

/// How much was transferred, how fast, and the remaining time if it is known.
fn transfer_text(sum: &TransferTotals, rate: Option<u64>) -> String {
    /// With several parts, one must be complete before the remaining time is shown.
    const TELLING_PART: u64 = 50;
    let mut told = amount(sum.moved_bytes, sum.total_bytes);
    let goes_on = sum.moved_bytes < sum.total_bytes || sum.total_bytes == 0;
    let Some(rate) = rate.filter(|_| goes_on && sum.moved_bytes > 0) else { return told };
    told.push_str(&format!(", {}/s", bytes_text(rate)));
    let left_s = sum.total_bytes.saturating_sub(sum.moved_bytes).checked_div(rate);
    let can_tell = sum.total_bytes > 0 && sum.moved_bytes >= sum.total_bytes / TELLING_PART;
    if let Some(left_s) = left_s.filter(|_| can_tell) {
        told.push_str(&format!(", {} left", time_left_text(left_s.saturating_add(1))));
    }
    told
}

fn time_left_text(seconds: u64) -> String {
    match seconds {
        ..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..=172_800 => format!("{} h", seconds / 3600),
        _ => "days".to_owned(),
    }
}

/// `3.4 of 12.0 MiB`, in the unit of the total. Without a known total: the bytes so far.
fn amount(done: u64, total: u64) -> String {
    if total == 0 {
        return bytes_text(done);
    }
    let (unit, name) = unit_of(total);
    format!("{} of {} {name}", in_unit(done.min(total), unit), in_unit(total, unit))
}

pub(crate) fn bytes_text(bytes: u64) -> String {
    let (unit, name) = unit_of(bytes);
    format!("{} {name}", in_unit(bytes, unit))
}

fn unit_of(bytes: u64) -> (u64, &'static str) {
    match bytes {
        ..1_024 => (1, "B"),
        1_024..1_048_576 => (1 << 10, "KiB"),
        1_048_576..1_073_741_824 => (1 << 20, "MiB"),
        1_073_741_824.. => (1 << 30, "GiB"),
    }
}

fn in_unit(bytes: u64, unit: u64) -> String {
    if unit == 1 {
        return bytes.to_string();
    }
    let tenths = u128::from(bytes) * 10 / u128::from(unit);
    format!("{}.{}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests;
