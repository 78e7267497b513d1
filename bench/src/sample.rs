//! Measured durations and their statistics.

use std::time::Duration;

/// Milliseconds, in the order they were measured.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample(Vec<f64>);

impl Sample {
    pub(crate) fn push(&mut self, took: Duration) {
        self.0.push(took.as_secs_f64() * 1e3);
    }

    pub(crate) fn push_ms(&mut self, ms: f64) {
        self.0.push(ms);
    }

    pub(crate) fn extend(&mut self, other: &Sample) {
        self.0.extend_from_slice(&other.0);
    }

    /// Each less a constant that is not ours.
    pub(crate) fn less(&self, ms: f64) -> Sample {
        Sample(self.0.iter().map(|value| value - ms).collect())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn p50(&self) -> f64 {
        self.at(0.50)
    }

    pub(crate) fn p95(&self) -> f64 {
        self.at(0.95)
    }

    pub(crate) fn p99(&self) -> f64 {
        self.at(0.99)
    }

    pub(crate) fn min(&self) -> f64 {
        self.at(0.0)
    }

    pub(crate) fn max(&self) -> f64 {
        self.at(1.0)
    }

    fn at(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1);
        sorted.get((last as f64 * share).round() as usize).copied().unwrap_or(f64::NAN)
    }
}
