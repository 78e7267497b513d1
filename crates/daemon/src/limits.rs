//! The limits of an agent's sandbox: configured values, defaults, and their texts.

use std::path::Path;
use std::sync::OnceLock;

use lodge_core::limits::span;
use lodge_core::limits::{MEMORY_SHARE_DEFAULT, OUTPUT_BYTES_MAX, PIDS_DEFAULT};
use lodge_core::record::LimitsRecord;
use lodge_core::{Cause, limits};
use lodge_exec::{EnforcedLimit, Limits, Resource};
use lodge_image::agentfile::LimitKey;
use lodge_proto::LimitView;

/// The limits of a sandbox that is about to be started.
pub fn of_sandbox(asked: LimitsRecord, data_dir: &Path) -> Limits {
    let half_free = || free_bytes(data_dir).map(|bytes| bytes / limits::DISK_SHARE_DEFAULT);
    Limits {
        memory_bytes: asked.memory_bytes.or_else(half_of_memory),
        pids: Some(asked.pids.unwrap_or(PIDS_DEFAULT)),
        cpu_ms: asked.cpu_ms,
        disk_bytes: asked.disk_bytes.or_else(half_free),
    }
}

/// Most that one tool call may write to its streams.
pub fn output_bytes(asked: LimitsRecord) -> u64 {
    asked.output_bytes.unwrap_or(OUTPUT_BYTES_MAX)
}

/// Most that a job may write before it is ended; 0: any number. How much of it is kept is another matter.
pub fn job_output_max(asked: LimitsRecord) -> u64 {
    asked.output_bytes.unwrap_or(0)
}

/// Most output of an agent's jobs that the archive keeps, where that is limited.
pub fn archive_max(asked: LimitsRecord) -> Option<u64> {
    asked.disk_bytes
}

/// Every limit of an agent. For a live sandbox, its keeper reports them.
pub fn view(asked: LimitsRecord, in_force: Option<&[EnforcedLimit]>) -> Vec<LimitView> {
    let all = [
        (Resource::Memory, asked.memory_bytes, half_of_memory()),
        (Resource::Pids, asked.pids, Some(PIDS_DEFAULT)),
        (Resource::CpuTime, asked.cpu_ms, None),
        (Resource::Disk, asked.disk_bytes, None),
        (Resource::Output, asked.output_bytes, Some(OUTPUT_BYTES_MAX)),
    ];
    let one = |(resource, asked, otherwise): (Resource, Option<u64>, Option<u64>)| {
        let held = in_force.and_then(|all| all.iter().find(|held| held.resource == resource));
        let by = match resource {
            // A keeper does not report it, because each exec has its own.
            Resource::Output => in_force.map(|_| "counting".to_owned()),
            Resource::Memory | Resource::Pids | Resource::CpuTime | Resource::Disk | Resource::Time => {
                held.map(|held| held.by.clone())
            }
        };
        let limit = held.map(|held| held.limit).or(asked).or(otherwise);
        let has_default = !matches!(resource, Resource::CpuTime | Resource::Time);
        (limit.is_some() || has_default).then(|| LimitView {
            name: name(resource).to_owned(),
            limit,
            source: if asked.is_some() { "agent" } else { "default" }.to_owned(),
            by,
        })
    };
    all.into_iter().filter_map(one).collect()
}

/// Limits that are recorded and that nothing holds yet, as an Agentfile calls them.
pub fn not_enforced(asked: LimitsRecord) -> Vec<String> {
    let recorded = [
        ("budget-usd", asked.budget_micro_usd),
        ("budget-tokens", asked.budget_tokens),
        ("context-tokens", asked.context_tokens),
    ];
    recorded.into_iter().filter(|(_, asked)| asked.is_some()).map(|(name, _)| name.to_owned()).collect()
}

/// The default of a limit, in words: its value may depend on the host.
pub fn default_text(key: LimitKey) -> String {
    match key {
        LimitKey::Memory => "half of the host's memory".to_owned(),
        LimitKey::Pids => PIDS_DEFAULT.to_string(),
        LimitKey::Disk => "half of the free disk".to_owned(),
        LimitKey::Output => format!("{}m", OUTPUT_BYTES_MAX >> 20),
        LimitKey::RevivalPolicy => "as the daemon is set".to_owned(),
        LimitKey::CpuTime | LimitKey::BudgetUsd | LimitKey::BudgetTokens | LimitKey::ContextTokens => {
            "no limit".to_owned()
        }
    }
}

fn name(resource: Resource) -> &'static str {
    match resource {
        Resource::Memory => "memory",
        Resource::Pids => "pids",
        Resource::CpuTime => "cpu_time",
        Resource::Disk => "disk",
        Resource::Time => "time",
        Resource::Output => "output",
    }
}

/// Read once: it stays what it is while the machine runs, and every agent that is shown asks for it.
fn half_of_memory() -> Option<u64> {
    static HALF: OnceLock<Option<u64>> = OnceLock::new();
    *HALF.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/meminfo").ok()?;
        let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        let kilobytes: u64 = total.split_whitespace().next()?.parse().ok()?;
        Some(kilobytes.saturating_mul(1024) / MEMORY_SHARE_DEFAULT)
    })
}

fn free_bytes(dir: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(dir).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// The cause as it is recorded.
pub fn recorded(cause: &lodge_exec::LimitHit) -> Cause {
    match cause.resource {
        Resource::Memory => Cause::Oom,
        Resource::Pids => Cause::Pids,
        Resource::CpuTime => Cause::CpuTime,
        Resource::Disk => Cause::Disk,
        Resource::Time => Cause::Timeout,
        Resource::Output => Cause::Output,
    }
}

/// The cause in words.
pub fn words(cause: &lodge_exec::LimitHit) -> String {
    let limit = cause.limit;
    match cause.resource {
        Resource::Memory => format!("out of memory (limit {})", bytes(limit)),
        Resource::Pids => format!("too many processes (limit {limit})"),
        Resource::CpuTime => format!("out of processor time (limit {})", span(limit)),
        Resource::Disk if cause.used == 0 => format!("a file reached the disk limit of {}", bytes(limit)),
        Resource::Disk if cause.used == u64::MAX => {
            format!("its files could not be counted, so the disk limit of {} counts as reached", bytes(limit))
        }
        Resource::Disk => {
            let (limit, used) = (bytes(limit), bytes(cause.used));
            format!("out of disk space (limit {limit}, {used} used)")
        }
        Resource::Time => format!("out of time (limit {})", span(limit)),
        Resource::Output => format!("too much output (limit {})", bytes(limit)),
    }
}

fn bytes(count: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(unit, _)| count >= *unit) {
        Some((unit, word)) if count.is_multiple_of(unit) => format!("{} {word}", count / unit),
        Some((unit, word)) => format!("{:.1} {word}", count as f64 / unit as f64),
        None => format!("{count} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_says_what_ran_out_and_where_the_limit_is() {
        let told = |resource, limit, used| words(&lodge_exec::LimitHit { resource, limit, used });
        assert_eq!(told(Resource::Memory, 512 << 20, 0), "out of memory (limit 512 MiB)");
        assert_eq!(told(Resource::Disk, 3 << 29, 1 << 31), "out of disk space (limit 1.5 GiB, 2 GiB used)");
        assert_eq!(told(Resource::CpuTime, 1_500, 0), "out of processor time (limit 1.5 s)");
        assert_eq!(told(Resource::Time, 600_000, 0), "out of time (limit 10 min)");
        assert_eq!(told(Resource::Time, 150_000, 0), "out of time (limit 150 s)");
        assert_eq!(told(Resource::Pids, 64, 64), "too many processes (limit 64)");
        assert_eq!(told(Resource::Output, 900, 901), "too much output (limit 900 bytes)");
    }
}
