//! What a crash run did and what it found: counts, and every broken promise in words.

use std::collections::BTreeMap;
use std::fmt;

/// How a promise was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Broken {
    /// Acknowledged or done, and gone.
    Lost,
    /// Accepted, asked, answered or done twice.
    Duplicated,
    /// An outcome that nobody knows, although every keeper lived.
    Unknown,
    /// An event that a re-attached client did not see.
    EventMissed,
    /// An event that it saw twice or out of order.
    EventDoubled,
    /// A keeper that was not adopted, or was not alone.
    Keeper,
    /// A process that outlived its agent.
    LeftBehind,
    /// A turn that did not end, or not as it should.
    Wrong,
}

impl Broken {
    const ALL: [Broken; 8] = [
        Broken::Lost,
        Broken::Duplicated,
        Broken::Unknown,
        Broken::EventMissed,
        Broken::EventDoubled,
        Broken::Keeper,
        Broken::LeftBehind,
        Broken::Wrong,
    ];

    fn words(self) -> &'static str {
        match self {
            Broken::Lost => "lost",
            Broken::Duplicated => "duplicated",
            Broken::Unknown => "unknown",
            Broken::EventMissed => "events missed",
            Broken::EventDoubled => "events doubled",
            Broken::Keeper => "keepers not adopted",
            Broken::LeftBehind => "left behind",
            Broken::Wrong => "ended wrongly",
        }
    }
}

#[derive(Debug, Clone, Default)]
pub struct Report {
    pub kills: u64,
    /// Kills with turns in flight, and how many turns those were in all.
    pub busy_kills: u64,
    pub cut_turns: u64,
    /// Kills by what they waited for.
    pub aims: BTreeMap<String, u64>,
    /// Deaths at a named point.
    pub points: BTreeMap<String, u64>,
    pub acknowledged: u64,
    pub resent: u64,
    pub adoptions: u64,
    pub effects: u64,
    pub requests: u64,
    pub events: u64,
    pub restarted_steps: u64,
    pub broken: Vec<(Broken, String)>,
}

impl Report {
    pub fn add(&mut self, broken: Broken, what: impl Into<String>) {
        self.broken.push((broken, what.into()));
    }

    pub fn count(&self, broken: Broken) -> usize {
        self.broken.iter().filter(|(kind, _)| *kind == broken).count()
    }

    pub fn is_clean(&self) -> bool {
        self.broken.is_empty()
    }

    /// Takes in what another part of the same run counted.
    pub fn merge(&mut self, other: Report) {
        self.kills += other.kills;
        self.busy_kills += other.busy_kills;
        self.cut_turns += other.cut_turns;
        self.acknowledged += other.acknowledged;
        self.resent += other.resent;
        self.adoptions += other.adoptions;
        self.effects += other.effects;
        self.requests += other.requests;
        self.events += other.events;
        self.restarted_steps += other.restarted_steps;
        self.broken.extend(other.broken);
        for (mine, theirs) in [(&mut self.aims, other.aims), (&mut self.points, other.points)] {
            for (name, count) in theirs {
                *mine.entry(name).or_default() += count;
            }
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |name: &str, count: u64| writeln!(f, "  {name:<36}{count:>7}");
        row("kills", self.kills)?;
        row("kills with turns in flight", self.busy_kills)?;
        row("turns in flight at kills", self.cut_turns)?;
        row("messages acknowledged", self.acknowledged)?;
        row("messages sent again", self.resent)?;
        row("keepers adopted", self.adoptions)?;
        row("effects", self.effects)?;
        row("model requests", self.requests)?;
        row("model steps restarted", self.restarted_steps)?;
        row("events followed", self.events)?;
        for broken in Broken::ALL {
            row(broken.words(), self.count(broken) as u64)?;
        }
        for (name, count) in &self.aims {
            row(&format!("killed {name}"), *count)?;
        }
        for (name, count) in &self.points {
            row(&format!("point {name}"), *count)?;
        }
        for (broken, what) in &self.broken {
            writeln!(f, "BROKEN ({}): {what}", broken.words())?;
        }
        Ok(())
    }
}
