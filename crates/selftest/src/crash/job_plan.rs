//! Jobs whose whole course is known beforehand: what they do, every byte that they write, and how they end.

use serde_json::{Value, json};

use super::report::BrokenPromise;

/// Lines of stdout after which a job pauses, and of which the first has one on stderr beside it.
const PAUSE_LINES: u32 = 20;
const STDERR_EVERY: u32 = 7;
/// What is kept of each stream of a job that writes more, and how much of that is its beginning.
const CUT: &str = "8k";
const CUT_BYTES: usize = 8 << 10;
const CUT_HEAD_BYTES: usize = 6 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobKind {
    /// A few lines, and a good end.
    Brief,
    /// Takes its time, and ends with a code.
    Slow,
    /// So much that it is archived while it runs.
    Loud,
    /// Ended by a signal.
    Signalled,
    /// Writes nothing.
    Mute,
    /// Writes more than is kept of it.
    Cut,
}

impl JobKind {
    pub const ALL: [JobKind; 6] =
        [JobKind::Brief, JobKind::Slow, JobKind::Loud, JobKind::Signalled, JobKind::Mute, JobKind::Cut];

    fn lines(self) -> u32 {
        match self {
            JobKind::Brief => 20,
            JobKind::Slow | JobKind::Signalled => 60,
            JobKind::Loud => 3_000,
            JobKind::Mute => 0,
            JobKind::Cut => 400,
        }
    }

    /// In seconds.
    fn pause(self) -> &'static str {
        match self {
            JobKind::Brief => "0.05",
            JobKind::Slow | JobKind::Signalled => "0.1",
            JobKind::Loud | JobKind::Mute | JobKind::Cut => "",
        }
    }

    /// The last word of its line.
    fn ending(self) -> &'static str {
        match self {
            JobKind::Brief | JobKind::Loud | JobKind::Mute => "exit 0",
            JobKind::Slow | JobKind::Cut => "exit 3",
            JobKind::Signalled => "kill -TERM $$",
        }
    }

    /// Its exit code, and the signal that ended it.
    pub fn outcome(self) -> (Option<i32>, Option<i32>) {
        match self {
            JobKind::Brief | JobKind::Loud | JobKind::Mute => (Some(0), None),
            JobKind::Slow | JobKind::Cut => (Some(3), None),
            JobKind::Signalled => (None, Some(libc::SIGTERM)),
        }
    }

    /// What is kept of each stream, where that is less than usual.
    pub fn output(self) -> Option<String> {
        match self {
            JobKind::Cut => Some(CUT.to_owned()),
            JobKind::Brief | JobKind::Slow | JobKind::Loud | JobKind::Signalled | JobKind::Mute => None,
        }
    }

    /// For `bash`.
    pub fn args(self, job_line: &str, token: &str) -> Vec<String> {
        ["-c", job_line, token, &self.lines().to_string(), self.pause(), self.ending()]
            .map(str::to_owned)
            .into()
    }

    /// For `job_submit`.
    pub fn call(self, job_line: &str, token: &str) -> Value {
        json!({"bin": "bash", "args": self.args(job_line, token)})
    }

    /// All that it writes to stdout and stderr.
    pub fn written(self, token: &str) -> [String; 2] {
        let mut all = [String::new(), String::new()];
        for line in 0..self.lines() {
            all[0]
                .push_str(&format!("out {token}/{line}: and a few words more, so that it takes its room\n"));
            if line % STDERR_EVERY == 0 {
                all[1].push_str(&format!("err {token}/{line}\n"));
            }
        }
        all
    }

    /// What is wrong with a stream of which `seen` bytes were written and these were read, `dropped` passed over.
    pub fn misread(self, whole: &str, seen: u64, read: &[u8], dropped: u64) -> Option<BrokenPromise> {
        let seen = usize::try_from(seen).unwrap_or(usize::MAX);
        let Some(written) = whole.as_bytes().get(..seen) else { return Some(BrokenPromise::Duplicated) };
        let is_right = match (self, dropped) {
            (_, 0) => read == written,
            (JobKind::Cut, dropped) => {
                let head = CUT_HEAD_BYTES.min(read.len());
                let (first, last) = read.split_at(head);
                written.starts_with(first)
                    && written.ends_with(last)
                    && read.len() <= CUT_BYTES
                    && read.len() as u64 + dropped == seen as u64
            }
            (JobKind::Brief | JobKind::Slow | JobKind::Loud | JobKind::Signalled | JobKind::Mute, _) => false,
        };
        match (is_right, read.len() > written.len()) {
            (true, _) => None,
            (false, true) => Some(BrokenPromise::Duplicated),
            (false, false) => Some(BrokenPromise::Lost),
        }
    }
}

/// For `bash -c` after the word that reports effects: has the effects of [`effects_of`], writes `$1` lines with an
/// occasional pause of `$2` seconds, and ends as `$3` says.
pub fn job_script() -> String {
    format!(
        "t=\"${{0##* }}\"; say \"$t.job.begin\"; i=0; while [ $i -lt $1 ]; do \
         echo \"out $t/$i: and a few words more, so that it takes its room\"; \
         [ $((i % {STDERR_EVERY})) != 0 ] || echo \"err $t/$i\" >&2; i=$((i + 1)); \
         [ -z \"$2\" ] || [ $((i % {PAUSE_LINES})) != 0 ] || sleep $2 || exit; done; say \"$t.job.end\"; eval \"$3\""
    )
}

/// What a job does to the world, in this order.
pub fn effects_of(token: &str) -> [String; 2] {
    [format!("{token}.job.begin"), format!("{token}.job.end")]
}

/// Whether these are all bytes of both, each in its order.
pub fn is_interleaved(merged: &[u8], out: &[u8], err: &[u8]) -> bool {
    // How much of the first may have been met so far; there is hardly ever more than one way.
    let mut ways = vec![0];
    for (at, byte) in merged.iter().enumerate() {
        let mut next = Vec::new();
        for way in ways {
            if out.get(way) == Some(byte) {
                next.push(way + 1);
            }
            if err.get(at - way) == Some(byte) {
                next.push(way);
            }
        }
        next.sort_unstable();
        next.dedup();
        ways = next;
    }
    merged.len() == out.len() + err.len() && ways.contains(&out.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_that_is_missing_twice_there_or_another_is_noticed() {
        let [out, _] = JobKind::Slow.written("J1");
        let misread = |read: &[u8]| JobKind::Slow.misread(&out, out.len() as u64, read, 0);
        assert_eq!(misread(out.as_bytes()), None);
        assert_eq!(misread(&out.as_bytes()[1..]), Some(BrokenPromise::Lost));
        assert_eq!(misread(&[out.as_bytes(), b"!"].concat()), Some(BrokenPromise::Duplicated));
        let mut other = out.clone().into_bytes();
        other[100] ^= 1;
        assert_eq!(misread(&other), Some(BrokenPromise::Lost));
        assert_eq!(
            JobKind::Slow.misread(&out, out.len() as u64, &out.as_bytes()[1..], 1),
            Some(BrokenPromise::Lost)
        );
    }

    #[test]
    fn of_a_long_output_both_ends_are_kept_and_nothing_else_passes_for_them() {
        let [out, _] = JobKind::Cut.written("J1");
        let (all, len) = (out.as_bytes(), out.len());
        let kept = [&all[..CUT_HEAD_BYTES], &all[len - 1_500..]].concat();
        let dropped = (len - kept.len()) as u64;
        assert_eq!(JobKind::Cut.misread(&out, len as u64, &kept, dropped), None);
        assert_eq!(JobKind::Cut.misread(&out, len as u64, &kept, dropped - 1), Some(BrokenPromise::Lost));
        let shifted = [&all[..CUT_HEAD_BYTES], &all[len - 1_501..len - 1]].concat();
        assert_eq!(JobKind::Cut.misread(&out, len as u64, &shifted, dropped), Some(BrokenPromise::Lost));
    }

    #[test]
    fn two_streams_may_come_in_any_order_but_each_in_its_own() {
        assert!(is_interleaved(b"axbycz", b"abc", b"xyz") && is_interleaved(b"xyzabc", b"abc", b"xyz"));
        assert!(is_interleaved(b"aab", b"ab", b"a") && is_interleaved(b"", b"", b""));
        for wrong in [&b"axbyc"[..], b"axbyczz", b"axcybz", b"abc"] {
            assert!(!is_interleaved(wrong, b"abc", b"xyz"), "{wrong:?}");
        }
    }
}
