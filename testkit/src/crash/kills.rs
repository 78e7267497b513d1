//! Random kills: at a moment, after something was seen, while messages are on their way, while a daemon boots.

use std::time::{Duration, Instant};

use super::plan::Model;
use super::report::Report;
use super::rng::Rng;
use super::world::World;

/// Kills in one state directory; then everything is checked and the next one begins.
pub const KILLS_A_ROUND: u64 = 25;
const AGENTS: usize = 3;
/// With more turns than this in flight, nothing new is sent until some have ended.
const OPEN_TURNS_MAX: usize = 9;
/// How long a kill waits for what it aims at; then it comes anyway.
const AIM_WITHIN: Duration = Duration::from_millis(400);
/// A boot with its adoptions takes about as long.
const BOOT_US: u64 = 120_000;
/// Most turns end within this time.
const WORK_US: u64 = 300_000;
/// Events that a kill may follow closely.
const KINDS: [&str; 9] = [
    "daemon.started",
    "lineage.adopted",
    "turn.accepted",
    "turn.started",
    "turn.step_started",
    "turn.tool_call",
    "turn.tool_result",
    "turn.step_finished",
    "turn.finished",
];

/// Runs rounds until there were `kills` kills. The first round's seed is `seed` itself.
pub async fn random_kills(model: Model, seed: u64, kills: u64) -> Report {
    let mut report = Report::default();
    let mut seeds = Rng::new(seed);
    let mut round_seed = seed;
    while report.kills < kills && report.is_clean() {
        let wanted = KILLS_A_ROUND.min(kills - report.kills);
        println!("{}", how_to_repeat(model, round_seed, wanted));
        let mut world = World::start(model, round_seed, AGENTS, &[]).await;
        while world.report.kills < wanted {
            world.one_kill().await;
        }
        report.merge(world.finish().await);
        round_seed = seeds.next();
    }
    report
}

/// The words that bring a round back.
fn how_to_repeat(model: Model, seed: u64, kills: u64) -> String {
    let test = match model {
        Model::Script => "nothing_with_the_script_model",
        Model::OpenAi => "streams_are_cut",
    };
    format!(
        "round: LODGE_CRASH_SEED={seed} LODGE_CRASH_KILLS={kills} cargo test -p lodge-testkit --test crash {test}"
    )
}

impl World {
    /// Sends, aims, kills, and starts the next daemon.
    async fn one_kill(&mut self) {
        let from = self.follower.count();
        let bytes = self.effects.bytes();
        self.send_again();
        if self.open_turns() < OPEN_TURNS_MAX {
            for _ in 0..=self.rng.below(3) {
                self.send_new();
            }
        }
        match self.rng.below(10) {
            0..3 => {
                self.gather().await;
                self.delay(WORK_US).await;
                self.kill("at a moment");
            }
            3..6 => {
                self.gather().await;
                let kind = *self.rng.pick(&KINDS);
                self.follower.wait_for(from, AIM_WITHIN, |event| event.kind == kind).await;
                self.delay(2_000).await;
                self.kill(&format!("after {kind}"));
            }
            6 => {
                self.delay(6_000).await;
                self.kill("while sending");
            }
            7 => {
                self.gather().await;
                self.kill("after the acknowledgement");
            }
            _ => {
                let until = Instant::now() + AIM_WITHIN;
                while self.effects.bytes() == bytes && Instant::now() < until {
                    tokio::time::sleep(Duration::from_micros(500)).await;
                }
                self.delay(2_000).await;
                self.kill("after an effect");
            }
        }
        self.gather().await;
        while self.rng.percent(25) {
            self.lodge.spawn();
            self.delay(BOOT_US).await;
            self.kill("while booting");
        }
        self.lodge.start();
        if self.rng.percent(60) {
            self.check_adoption().await;
            self.expect_keepers(AGENTS).await;
        }
    }

    async fn delay(&mut self, below_us: u64) {
        let delay = Duration::from_micros(self.rng.below(below_us));
        // The kill's own moment: nothing is waited for.
        tokio::time::sleep(delay).await;
    }
}
