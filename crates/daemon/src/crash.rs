//! Named points at which a test may end this process as `kill -9` would.
//!
//! `LODGED_CRASH_AT=after_intent:3` ends it when that point is passed for the third time. Unset, a point costs one
//! load of a flag. `LODGED_KEEPER_CRASH_AT=keeper.after_claim` does the same to a keeper.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lodge_core::quarantine::WorkKind;

/// Every point that `lodge selftest` visits, in the order of the one path.
pub const POINTS: &[&str] = &[
    "after_lock",
    "after_load",
    "during_adoption",
    "after_adoption",
    "before_commit",
    "after_accept",
    "after_intent",
    "during_effect",
    "before_outcome",
    "after_outcome",
    "before_keeping",
    "after_keeping",
    "during_model",
    "before_answer",
    "after_answer",
    "during_summary",
    "before_summary",
    "after_compaction",
    "after_change",
    "after_job_submit",
    "before_job_start",
    "after_job_start",
    "before_job_end",
    "after_job_end",
    "before_archive",
    "after_archive",
    "after_release",
    "before_job_forget",
    "after_image_kept",
    "during_pull",
    "after_pulled",
    "during_start",
    "during_stop",
];

/// The points in the work of standalone sandboxes, which tests of sandboxes visit.
pub const SANDBOX_POINTS: &[&str] = &[
    "after_sandbox",
    "after_exec",
    "before_exec_start",
    "after_exec_start",
    "during_exec",
    "before_exec_end",
    "after_exec_end",
];

struct CrashPlan {
    point: String,
    left: AtomicU64,
}

static PLAN: OnceLock<Option<CrashPlan>> = OnceLock::new();

/// Passes a named point.
pub fn point(name: &'static str) {
    let plan = PLAN.get_or_init(|| {
        let text = std::env::var("LODGED_CRASH_AT").ok()?;
        let (point, nth) = text.split_once(':').unwrap_or((&text, "1"));
        Some(CrashPlan { point: point.to_owned(), left: AtomicU64::new(nth.parse().unwrap_or(1)) })
    });
    let Some(plan) = plan else { return };
    if plan.point == name && plan.left.fetch_sub(1, Ordering::SeqCst) == 1 {
        // As one from outside, which hardly ever comes while something is computed.
        crate::suspects::absolve();
        die();
    }
}

fn die() {
    // SAFETY: sending a signal to oneself touches no memory; SIGKILL cannot be handled, so nothing is tidied up.
    unsafe {
        libc::kill(libc::getpid(), libc::SIGKILL);
    }
}

/// Work that ends the process whenever it is computed, as a bug would: `LODGED_PILL=model_call:bitter` does for every model
/// call whose newest message has that word in it.
static PILL: OnceLock<Option<(String, String)>> = OnceLock::new();

fn pill_plan() -> Option<&'static (String, String)> {
    let read = || {
        let text = std::env::var("LODGED_PILL").ok()?;
        text.split_once(':').map(|(kind, word)| (kind.to_owned(), word.to_owned()))
    };
    PILL.get_or_init(read).as_ref()
}

/// Whether something that is computed at this place is a pill.
pub fn has_pill(place: &str) -> bool {
    pill_plan().is_some_and(|(planned, _)| planned == place)
}

/// Computes work with this text in it.
pub fn pill(kind: WorkKind, text: &str) {
    pill_at(kind.word(), text);
}

/// The same at one place of the work of a kind: `build`, `diff`, `import`, `export` or `document`, which is what a registry sent.
pub fn pill_at(place: &str, text: &str) {
    if let Some((planned, word)) = pill_plan()
        && planned == place
        && text.contains(word.as_str())
    {
        die();
    }
}

static KEEPER_POINT_GIVEN: AtomicBool = AtomicBool::new(false);

/// Where the first keeper of this process ends itself. Its replacement must live.
pub fn keeper_point() -> Option<String> {
    let point = std::env::var("LODGED_KEEPER_CRASH_AT").ok()?;
    (!KEEPER_POINT_GIVEN.swap(true, Ordering::SeqCst)).then_some(point)
}

/// A deliberate bug, so that the crash tests can show that they notice it. Only in debug builds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    None,
    /// Answers leave before they are durable.
    ReplyBeforeCommit,
    /// Programs start without a durable intent.
    DropIntent,
    /// A program with an unknown outcome is run again, safe or not.
    RepeatUnsafe,
    /// The files of a job that ended go before its output is in the archive.
    ForgetBeforeArchive,
}

pub fn mutation() -> Mutation {
    if !cfg!(debug_assertions) {
        return Mutation::None;
    }
    match std::env::var("LODGED_MUTATION").as_deref() {
        Ok("reply-before-commit") => Mutation::ReplyBeforeCommit,
        Ok("drop-intent") => Mutation::DropIntent,
        Ok("repeat-unsafe") => Mutation::RepeatUnsafe,
        Ok("forget-before-archive") => Mutation::ForgetBeforeArchive,
        Ok(_) | Err(_) => Mutation::None,
    }
}
