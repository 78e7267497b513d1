//! Random kills: at a moment, after something was seen, while messages are on their way, while a daemon boots; of the
//! daemon, a runtime, a keeper, or two at once; and between them deaths at named points and restarts under load.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use super::CrashSetup;
use super::points::{CrashPoint, POINTS};
use super::report::{BrokenPromise, CrashReport};
use super::world::{CrashWorld, through};
use crate::lodge::PATIENCE;
use crate::trouble::Trouble;
use lodge_proto::EventKind;

/// Kills in one state directory; then everything is checked and the next one begins.
pub const KILLS_A_ROUND: u64 = 25;
/// Named points that a whole round dies at.
const POINTS_A_ROUND: u64 = 8;
const AGENTS: usize = 3;
/// With more turns than this in flight, nothing new is sent until some have ended.
const OPEN_TURNS_MAX: usize = 9;
/// How long a kill waits for what it aims at; then it comes anyway.
const AIM_WITHIN: Duration = Duration::from_millis(400);
/// A boot with its adoptions takes about as long.
const BOOT_US: u64 = 120_000;
/// Most turns end within this time.
const WORK_US: u64 = 300_000;
/// The percentage of strikes that shut the daemon down instead of killing it.
const RESTARTS_PERCENT: u64 = 12;
/// A session, an agent or a token is changed so often, in percent of the strikes.
const CHANGES_PERCENT: u64 = 25;
/// Events that a kill may follow closely.
const KINDS: [EventKind; 12] = [
    EventKind::DaemonStarted,
    EventKind::LineageAdopted,
    EventKind::TurnAccepted,
    EventKind::TurnStarted,
    EventKind::TurnStepStarted,
    EventKind::TurnToolCall,
    EventKind::TurnToolResult,
    EventKind::TurnStepFinished,
    EventKind::TurnFinished,
    EventKind::JobSubmitted,
    EventKind::JobStarted,
    EventKind::JobFinished,
];

/// Runs rounds until there were `kills` kills, a few at a time, and stops at the first broken promise.
///
/// The first round has the setup's own seed: the seed and the number of kills reproduce a round. An error means that
/// the run could not start.
pub async fn rounds(setup: &CrashSetup, kills: u64) -> Result<CrashReport, Trouble> {
    let shared = RefCell::new(LaneState::default());
    // One task for all of them: when it is dropped, everything they started goes with it.
    tokio::join!(lane(setup, kills, &shared), lane(setup, kills, &shared), lane(setup, kills, &shared));
    let LaneState { report, stopped, .. } = shared.into_inner();
    stopped.map_or(Ok(report), Err)
}

/// Ends and starts the daemon in the ordinary way, `times` times, with turns in flight.
pub async fn restarts(setup: &CrashSetup, times: u64) -> CrashReport {
    through(setup, AGENTS, async |world| {
        for _ in 0..times {
            world.restart_under_load().await?;
        }
        Ok(())
    })
    .await
    .unwrap_or_else(CrashReport::from)
}

/// What the lanes have in common.
#[derive(Debug, Default)]
struct LaneState {
    planned: u64,
    number: u64,
    report: CrashReport,
    /// Why the first round did not begin.
    stopped: Option<Trouble>,
}

impl LaneState {
    /// The seed of the next round and its kills, if there is one.
    fn next(&mut self, setup: &CrashSetup, kills: u64) -> Option<(u64, u64)> {
        if self.planned >= kills || !self.report.is_clean() || self.stopped.is_some() {
            return None;
        }
        let wanted = KILLS_A_ROUND.min(kills - self.planned);
        // So far apart that rounds in a row take turns with the named points.
        let seed = setup.seed.wrapping_add(self.number * POINTS_A_ROUND);
        (self.planned, self.number) = (self.planned + wanted, self.number + 1);
        Some((seed, wanted))
    }
}

async fn lane(setup: &CrashSetup, kills: u64, shared: &RefCell<LaneState>) {
    loop {
        let next = shared.borrow_mut().next(setup, kills);
        let Some((seed, wanted)) = next else { return };
        let round = round(&setup.with_seed(seed), wanted).await;
        let mut shared = shared.borrow_mut();
        match round {
            Ok(round) => shared.report.merge(round),
            Err(trouble) if shared.report.kills == 0 => shared.stopped = Some(trouble),
            Err(trouble) => shared.report.merge(CrashReport::from(trouble)),
        }
    }
}

async fn round(setup: &CrashSetup, wanted: u64) -> Result<CrashReport, Trouble> {
    let points = points_of(setup.seed, wanted);
    let mut report = through(setup, AGENTS, async |world| {
        let mut named = 0;
        while world.report.kills < wanted && world.report.is_clean() {
            let due = world.report.kills * points.len() as u64 >= named as u64 * wanted;
            match points.get(named) {
                Some(point) if due => {
                    world.die_at(*point).await?;
                    named += 1;
                }
                Some(_) | None if world.rng.percent(RESTARTS_PERCENT) => world.restart_under_load().await?,
                Some(_) | None if world.rng.percent(CHANGES_PERCENT) => world.change_and_die().await?,
                Some(_) | None => world.one_strike().await?,
            }
        }
        Ok(())
    })
    .await?;
    for failed in &mut report.failed {
        failed.kills = wanted;
    }
    Ok(report)
}

/// The named points of a round: the next few in the order of the list, from where its seed says.
fn points_of(seed: u64, wanted: u64) -> Vec<CrashPoint> {
    let count = POINTS_A_ROUND * wanted / KILLS_A_ROUND;
    let first = usize::try_from(seed % POINTS.len() as u64).unwrap_or(0);
    POINTS.into_iter().cycle().skip(first).take(usize::try_from(count).unwrap_or(0)).collect()
}

impl CrashWorld {
    /// Sends, aims, kills, and sees that what was killed comes back.
    async fn one_strike(&mut self) -> Result<(), Trouble> {
        let from = self.follower.count();
        let bytes = self.effects.bytes();
        self.send_some();
        let victim = *self.rng.pick(self.setup.victims);
        let aim = self.aim(from, bytes).await;
        self.strike(victim, &aim).await?;
        self.gather().await;
        while self.lodge.pid().is_none() && self.rng.percent(25) {
            self.lodge.spawn()?;
            self.delay(BOOT_US).await;
            self.kill("while booting")?;
        }
        if self.lodge.pid().is_none() {
            self.start_again().await?;
            self.expect_keepers(AGENTS).await;
        } else if self.rng.percent(50) {
            self.check_adoption().await?;
        }
        Ok(())
    }

    pub fn send_some(&mut self) {
        self.send_again();
        if self.open_turns() < OPEN_TURNS_MAX {
            for _ in 0..=self.rng.below(3) {
                self.send_new();
            }
        }
        self.submit_some();
    }

    /// Waits for the moment of a kill, and says what it waited for.
    async fn aim(&mut self, from: usize, bytes: u64) -> String {
        match self.rng.below(10) {
            0..3 => {
                self.gather().await;
                self.delay(WORK_US).await;
                "at a moment".to_owned()
            }
            3..6 => {
                self.gather().await;
                let kind = *self.rng.pick(&KINDS);
                self.follower.wait_for(from, AIM_WITHIN, |event| event.is(kind)).await;
                self.delay(2_000).await;
                format!("after {}", kind.word())
            }
            6 => {
                self.delay(6_000).await;
                "while sending".to_owned()
            }
            7 => {
                self.gather().await;
                "after the acknowledgement".to_owned()
            }
            _ => {
                let until = Instant::now() + AIM_WITHIN;
                while self.effects.bytes() == bytes && Instant::now() < until {
                    tokio::time::sleep(Duration::from_micros(500)).await;
                }
                self.delay(2_000).await;
                "after an effect".to_owned()
            }
        }
    }

    /// Asks the daemon to end with turns in flight, and starts the next one: an upgrade, under load.
    async fn restart_under_load(&mut self) -> Result<(), Trouble> {
        self.send_some();
        self.delay(WORK_US / 2).await;
        self.lodge.terminate();
        let ended = self.lodge.wait_ended(PATIENCE).await?;
        if ended.is_none_or(|status| !status.success()) {
            self.report.add(BrokenPromise::Wrong, format!("asked to end, the daemon ended with {ended:?}"));
            self.lodge.kill9()?;
        }
        self.report.restarts += 1;
        self.gather().await;
        self.start_again().await?;
        self.expect_keepers(AGENTS).await;
        Ok(())
    }

    pub async fn delay(&mut self, below_us: u64) {
        let delay = Duration::from_micros(self.rng.below(below_us));
        // The kill's own moment: nothing is waited for.
        tokio::time::sleep(delay).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hundred_and_twenty_five_kills_die_at_every_named_point() {
        for seed in [0, 7, u64::MAX - 40] {
            let mut met: Vec<&str> = (0..5)
                .flat_map(|round| points_of(seed.wrapping_add(round * POINTS_A_ROUND), KILLS_A_ROUND))
                .map(|point| point.name)
                .collect();
            met.sort_unstable();
            met.dedup();
            assert_eq!(met.len(), POINTS.len(), "{seed}: {met:?}");
        }
    }

    #[test]
    fn rounds_together_have_as_many_kills_as_were_asked_for() {
        let programs = crate::Programs { lodge: "lodge".into(), lodged: "lodged".into() };
        let setup = CrashSetup::new(programs, super::super::CrashModel::Script, 9);
        let mut shared = LaneState::default();
        let all: Vec<_> = std::iter::from_fn(|| shared.next(&setup, 60)).collect();
        assert_eq!(all, [(9, 25), (17, 25), (25, 10)]);
    }
}
