//! What is printed: one row a claim, with its floor, its ratio and its hold.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::floor::Readings;
use crate::proc;
use crate::sample::Sample;

/// What a number must not pass.
#[derive(Debug, Clone)]
pub(crate) enum NumberBound {
    AtMost { words: String, limit: f64 },
    AtLeast { words: String, limit: f64 },
}

impl NumberBound {
    pub(crate) fn at_most(words: &str, limit: f64) -> NumberBound {
        NumberBound::AtMost { words: words.to_owned(), limit }
    }

    pub(crate) fn at_least(words: &str, limit: f64) -> NumberBound {
        NumberBound::AtLeast { words: words.to_owned(), limit }
    }

    fn holds(&self, value: f64) -> bool {
        match self {
            NumberBound::AtMost { limit, .. } => value <= *limit,
            NumberBound::AtLeast { limit, .. } => value >= *limit,
        }
    }
}

/// One line of the table.
#[derive(Debug, Clone)]
pub(crate) struct BenchRow {
    what: String,
    unit: &'static str,
    value: f64,
    min: Option<f64>,
    p95: Option<f64>,
    floor: Option<(String, f64)>,
    hold: Option<NumberBound>,
}

impl BenchRow {
    pub(crate) fn new(what: impl Into<String>, unit: &'static str, value: f64) -> BenchRow {
        BenchRow { what: what.into(), unit, value, min: None, p95: None, floor: None, hold: None }
    }

    /// A row about durations: the median, with the least and the 95th in a hundred beside it.
    pub(crate) fn times(what: impl Into<String>, sample: &Sample) -> BenchRow {
        BenchRow {
            min: Some(sample.min()),
            p95: Some(sample.p95()),
            ..BenchRow::new(what, "ms", sample.p50())
        }
    }

    /// A row about a rate or an amount, measured in several rounds.
    pub(crate) fn rounds(what: impl Into<String>, unit: &'static str, sample: &Sample) -> BenchRow {
        BenchRow { min: Some(sample.min()), ..BenchRow::new(what, unit, sample.p50()) }
    }

    pub(crate) fn with_floor(mut self, floor: &str, value: f64) -> BenchRow {
        self.floor = Some((floor.to_owned(), value));
        self
    }

    pub(crate) fn hold(mut self, hold: NumberBound) -> BenchRow {
        self.hold = Some(hold);
        self
    }

    fn verdict(&self) -> &'static str {
        match &self.hold {
            None => "",
            Some(hold) if hold.holds(self.value) => "pass",
            Some(_) => "OVER",
        }
    }

    fn line(&self) -> String {
        let dash = || "-".to_owned();
        let floor =
            self.floor.as_ref().map_or_else(dash, |(name, value)| format!("{} {name}", short(*value)));
        let ratio = self.floor.as_ref().map_or_else(dash, |(_, value)| format!("{:.1}x", self.value / value));
        let hold = match &self.hold {
            None => dash(),
            Some(NumberBound::AtMost { words, limit }) => format!("<= {}{}", short(*limit), detail(words)),
            Some(NumberBound::AtLeast { words, limit }) => format!(">= {}{}", short(*limit), detail(words)),
        };
        format!(
            "{:<58} {:>9} {:>8} {:>8} {:<5} {:>14} {:>7}  {:<38} {}",
            self.what,
            short(self.value),
            self.min.map_or_else(dash, short),
            self.p95.map_or_else(dash, short),
            self.unit,
            floor,
            ratio,
            hold,
            self.verdict()
        )
    }

    fn json(&self) -> Value {
        let hold = self.hold.as_ref().map(|hold| match hold {
            NumberBound::AtMost { words, limit } => json!({"at_most": limit, "words": words}),
            NumberBound::AtLeast { words, limit } => json!({"at_least": limit, "words": words}),
        });
        json!({
            "what": self.what,
            "unit": self.unit,
            "value": self.value,
            "min": self.min,
            "p95": self.p95,
            "floor": self.floor.as_ref().map(|(name, value)| json!({"name": name, "value": value})),
            "hold": hold,
            "verdict": self.verdict(),
        })
    }
}

/// Rows, printed as they come.
#[derive(Debug)]
pub(crate) struct BenchTable {
    rows: Vec<BenchRow>,
    not_run: Vec<(String, String)>,
    machine: String,
    quick: bool,
}

impl BenchTable {
    pub(crate) fn new(dir: PathBuf, quick: bool) -> BenchTable {
        let machine = format!(
            "{} cores, load {} at the start, files on {}, {}",
            std::thread::available_parallelism().map_or(0, usize::from),
            proc::load(),
            proc::file_system(&dir),
            if proc::is_root() { "as root" } else { "not as root" },
        );
        println!("{machine}");
        if quick {
            println!("a smoke run: too short to mean anything");
        }
        println!(
            "\n{:<58} {:>9} {:>8} {:>8} {:<5} {:>14} {:>7}  hold",
            "what", "median", "min", "p95", "unit", "floor", "ratio"
        );
        BenchTable { rows: Vec::new(), not_run: Vec::new(), machine, quick }
    }

    pub(crate) fn row(&mut self, row: BenchRow) {
        println!("{}", row.line());
        self.rows.push(row);
    }

    /// Words between rows, such as what could not be measured.
    pub(crate) fn note(&self, words: &str) {
        println!("  {words}");
    }

    /// Something that could not be measured here, and why.
    pub(crate) fn not_run(&mut self, what: &str, why: &str) {
        println!("  NOT RUN: {what}: {why}");
        self.not_run.push((what.to_owned(), why.to_owned()));
    }

    pub(crate) fn floors(&mut self, readings: &Readings) {
        self.row(BenchRow::times("floor: fdatasync of a 4 KB append", &readings.fsync));
        self.row(BenchRow::times("floor: spawn and wait of `true`", &readings.spawn));
        self.row(BenchRow::times("floor: Unix socket round trip, 128 bytes", &readings.socket));
    }

    pub(crate) fn end(&self) {
        let over = self.rows.iter().filter(|row| row.verdict() == "OVER").count();
        let held = self.rows.iter().filter(|row| row.hold.is_some()).count();
        if self.quick {
            println!("\n{} rows ran", self.rows.len());
        } else {
            println!("\n{} of {held} holds pass; load {} at the end", held - over, proc::load());
        }
    }

    pub(crate) fn json(&self) -> Value {
        let rows: Vec<Value> = self.rows.iter().map(BenchRow::json).collect();
        let not_run = self.not_run.iter().map(|(what, why)| json!({"what": what, "why": why}));
        let not_run: Vec<Value> = not_run.collect();
        json!({"machine": self.machine, "quick": self.quick, "rows": rows, "not_run": not_run})
    }
}

fn detail(words: &str) -> String {
    if words.is_empty() { String::new() } else { format!(" ({words})") }
}

/// Three digits that matter.
fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}
