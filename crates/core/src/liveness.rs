//! Whether a working process still gives signs of life.
//!
//! Silence is counted, not read from a clock: every check adds the time since the last one, but at most a multiple of
//! the interval. A suspended daemon, a sleeping machine and a clock jump add almost nothing.

use std::time::Duration;

/// The liveness of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Liveness {
    Active,
    Stale,
    Crashed,
}

impl Liveness {
    pub fn word(self) -> &'static str {
        match self {
            Liveness::Active => "active",
            Liveness::Stale => "stale",
            Liveness::Crashed => "crashed",
        }
    }
}

/// The silence after which a process is stale, and after which it counts as crashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thresholds {
    pub stale: Duration,
    pub crashed: Duration,
}

/// Checks between the last sign of life and staleness.
const LOOKS: u32 = 3;

impl Thresholds {
    /// The bounds themselves are stale.
    pub fn of(self, silence: Duration) -> Liveness {
        if silence > self.crashed {
            Liveness::Crashed
        } else if silence >= self.stale {
            Liveness::Stale
        } else {
            Liveness::Active
        }
    }

    /// The interval of checks.
    pub fn pause(self) -> Duration {
        self.stale / LOOKS
    }
}

/// The silence of one process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Silence(Duration);

impl Silence {
    /// A message arrived.
    pub fn broken(&mut self) {
        self.0 = Duration::ZERO;
    }

    /// Counts the time since the last check, as far as the daemon itself was running.
    pub fn look(&mut self, since_last: Duration, thresholds: Thresholds) -> Liveness {
        self.0 += since_last.min(thresholds.pause() * 2);
        thresholds.of(self.0)
    }

    pub fn so_far(self) -> Duration {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const USUAL: Thresholds = Thresholds { stale: Duration::from_secs(30), crashed: Duration::from_secs(90) };

    #[test]
    fn thirty_and_ninety_seconds_themselves_are_stale() {
        let ms = Duration::from_millis;
        for (silence, level) in [
            (ms(0), Liveness::Active),
            (ms(29_999), Liveness::Active),
            (ms(30_000), Liveness::Stale),
            (ms(90_000), Liveness::Stale),
            (ms(90_001), Liveness::Crashed),
        ] {
            assert_eq!(USUAL.of(silence), level, "{silence:?}");
        }
    }

    #[test]
    fn a_process_that_says_nothing_is_stale_and_then_crashed() {
        let mut silence = Silence::default();
        let levels: Vec<Liveness> = (0..10).map(|_| silence.look(USUAL.pause(), USUAL)).collect();
        assert_eq!(levels[..2], [Liveness::Active; 2]);
        assert_eq!(levels[2..9], [Liveness::Stale; 7]);
        assert_eq!(levels[9], Liveness::Crashed);
    }

    #[test]
    fn a_sign_of_life_begins_the_count_again() {
        let mut silence = Silence::default();
        for _ in 0..100 {
            silence.look(USUAL.pause(), USUAL);
            silence.broken();
        }
        assert_eq!(silence.look(USUAL.pause(), USUAL), Liveness::Active);
    }

    #[test]
    fn a_night_in_which_the_daemon_itself_stood_still_makes_nobody_even_stale() {
        let mut silence = Silence::default();
        assert_eq!(silence.look(8 * 3_600 * SECOND, USUAL), Liveness::Active);
        assert!(silence.so_far() <= 2 * USUAL.pause());
    }
}
