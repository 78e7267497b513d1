//! Percentiles by rank: a value that was measured, not one in between.

/// The smallest of `sorted` that is not exceeded by more than the rest of `percent`. Zero for nothing.
pub fn percentile(sorted: &[u64], percent: u64) -> u64 {
    let rank = (sorted.len() as u64 * percent).div_ceil(100).max(1);
    let place = usize::try_from(rank - 1).unwrap_or(usize::MAX);
    sorted.get(place).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::percentile;

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let values: Vec<u64> = (1..=10).collect();
        assert_eq!([percentile(&values, 50), percentile(&values, 99), percentile(&values, 0)], [5, 10, 1]);
        assert_eq!([percentile(&[7], 50), percentile(&[7], 99), percentile(&[], 50)], [7, 7, 0]);
    }
}
