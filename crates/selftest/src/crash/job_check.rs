//! Jobs compared with their plans: none lost, none run twice, every byte, how each ended, who was notified, and
//! nothing left.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Instant;

use lodge_proto::client::{Client, ClientError};
use lodge_proto::{Event, EventBody, JobListParams, JobView, ListJobs, MessageView, PAGE_MAX};
use serde_json::Value;

use super::job_plan::{JobKind, effects_of, is_interleaved};
use super::jobs::excerpt;
use super::plan::{CrashTool, MODEL_JOB, TurnShape};
use super::report::{BrokenPromise, CrashReport};
use super::strike::KeeperDeath;
use super::talk::ConversationRef;
use super::time::ms_since_1970;
use super::turns::ExpectedEffects;
use super::world::{CrashWorld, LOOK};
use crate::lodge::PATIENCE;
use crate::trouble::{Trouble, refused};

/// How the error of a job begins whose keeper died.
const LOST: &str = "lost: ";

/// A submitted job, from a client or a model.
#[derive(Debug, Clone)]
struct ExpectedJob {
    kind: JobKind,
    agent: usize,
    /// As it was acknowledged, if it was.
    id: Option<String>,
}

/// Jobs that were looked at, by the tokens of their plans.
#[derive(Debug, Default)]
pub struct JobViews {
    pub views: BTreeMap<String, JobView>,
}

impl CrashWorld {
    /// Sends one more message to sessions with ended jobs, so that the jobs can be reported.
    pub async fn prompt_for_notes(&mut self) -> Result<(), Trouble> {
        let mut client = self.lodge.try_client().await.map_err(refused("take a connection"))?;
        let listed = all_jobs(&mut client).await.map_err(refused("list the jobs"))?;
        let sessions: BTreeSet<(String, String)> =
            listed.into_iter().filter_map(|view| Some((view.agent, view.session?))).collect();
        for (agent, session) in sessions {
            let Some(at) = self.agents.iter().position(|known| known.id == agent) else { continue };
            self.send_in(at, TurnShape::Plain, ConversationRef::Session(session));
        }
        self.settle().await
    }

    /// Every acknowledged job exists once, as planned, and no unrequested job exists.
    pub async fn check_jobs(&mut self, expected: &mut ExpectedEffects) -> Result<JobViews, Trouble> {
        let mut client = self.lodge.try_client().await.map_err(refused("take a connection"))?;
        let mut jobs = JobViews::default();
        let listed = match all_jobs(&mut client).await {
            Ok(listed) => listed,
            Err(error) => {
                self.report.add(BrokenPromise::Lost, format!("the jobs: {error}"));
                return Ok(jobs);
            }
        };
        let mut wanted = self.expected_jobs();
        for view in listed {
            let token = token_of(&view);
            let known = jobs.views.contains_key(&token);
            match wanted.remove(&token) {
                Some(job) if job.id.as_ref().is_none_or(|id| *id == view.id) => {
                    self.check_job(&mut client, &token, &job, &view, expected).await;
                    jobs.views.insert(token, view);
                }
                Some(job) => {
                    let what = format!("job {token} was acknowledged as {:?} and is {}", job.id, view.id);
                    self.report.add(BrokenPromise::Lost, what);
                }
                None if known => {
                    self.report.add(
                        BrokenPromise::Duplicated,
                        format!("{token} is two jobs, one of them {}", view.id),
                    );
                }
                None => self
                    .report
                    .add(BrokenPromise::Duplicated, format!("job {} was not submitted by the test", view.id)),
            }
        }
        for (token, job) in wanted {
            expected.effects.extend(effects_of(&token).map(|effect| (effect, 1..=1)));
            self.report.add(BrokenPromise::Lost, format!("job {token} ({:?}) is not listed", job.id));
        }
        Ok(jobs)
    }

    /// All that was submitted: by clients, and by models.
    fn expected_jobs(&self) -> BTreeMap<String, ExpectedJob> {
        let clients = self.jobs.iter().map(|job| {
            (job.token.clone(), ExpectedJob { kind: job.kind, agent: job.agent, id: job.id.clone() })
        });
        let submits = self.sent.iter().filter(|sent| {
            sent.turn.is_some() && sent.plan.shape.calls().any(|call| call.tool == CrashTool::Submit)
        });
        let models = submits.map(|sent| {
            (sent.plan.token.clone(), ExpectedJob { kind: MODEL_JOB, agent: sent.agent, id: None })
        });
        clients.chain(models).collect()
    }

    async fn check_job(
        &mut self,
        client: &mut Client,
        token: &str,
        job: &ExpectedJob,
        view: &JobView,
        expected: &mut ExpectedEffects,
    ) {
        let ran = match outcome(job, view, &self.falls) {
            Ok(ran) => ran,
            Err(broken) => {
                self.report.add(broken, format!("job {token} ended as {view:?}"));
                JobExtent::Whole
            }
        };
        let range = match ran {
            JobExtent::Whole => 1..=1,
            JobExtent::Cut => {
                self.report.jobs_cut += 1;
                0..=1
            }
        };
        expected.effects.extend(effects_of(token).map(|effect| (effect, range.clone())));
        self.expect_archived(&view.id).await;
        self.check_output(client, token, job.kind, view, ran).await;
    }

    /// Its files are gone, since all of it is in the archive.
    async fn expect_archived(&mut self, id: &str) {
        let until = Instant::now() + PATIENCE;
        while let Some(dir) = self.files_of(id) {
            if Instant::now() >= until {
                let what = format!("job {id} is over, and its files are in {}", dir.display());
                return self.report.add(BrokenPromise::LeftBehind, what);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    fn files_of(&self, id: &str) -> Option<PathBuf> {
        let sandboxes = std::fs::read_dir(self.lodge.home().join("run")).ok()?;
        sandboxes.flatten().map(|sandbox| sandbox.path().join("exec").join(id)).find(|dir| dir.exists())
    }

    async fn check_output(
        &mut self,
        client: &mut Client,
        token: &str,
        kind: JobKind,
        view: &JobView,
        ran: JobExtent,
    ) {
        let mut kept = Vec::new();
        let seen = [view.stdout_bytes, view.stderr_bytes];
        for ((stream, whole), seen) in ["stdout", "stderr"].into_iter().zip(kind.written(token)).zip(seen) {
            if ran == JobExtent::Whole && seen != whole.len() as u64 {
                let what = format!("{stream} of {token} has {seen} bytes instead of {}", whole.len());
                self.report.add(BrokenPromise::Lost, what);
            }
            match self.whole(client, &view.id, stream).await {
                Ok((bytes, dropped)) => {
                    if let Some(broken) = kind.misread(&whole, seen, &bytes, dropped) {
                        let (len, begins) = (bytes.len(), excerpt(&bytes));
                        let what = format!(
                            "{stream} of {} ({token}): {len} of {seen} bytes, {dropped} dropped: {begins:?}",
                            view.id
                        );
                        self.report.add(broken, what);
                    }
                    self.report.job_bytes += bytes.len() as u64;
                    kept.push(bytes);
                }
                Err(error) => self.report.add(BrokenPromise::Lost, format!("{stream} of {token}: {error}")),
            }
        }
        let [out, err] = kept.as_slice() else { return };
        match self.whole(client, &view.id, "merged").await {
            Ok((merged, _)) if is_interleaved(&merged, out, err) => {}
            Ok((merged, _)) => {
                let (len, begins) = (merged.len(), excerpt(&merged));
                let what = format!("both streams of {} ({token}), merged: {len} bytes: {begins:?}", view.id);
                self.report.add(BrokenPromise::Lost, what);
            }
            Err(error) => self.report.add(BrokenPromise::Lost, format!("both streams of {token}: {error}")),
        }
    }

    /// Each end of a session's job was reported once: to the turn that waited for it, or in a note before a later
    /// turn.
    pub fn check_notes(&mut self, jobs: &JobViews, messages: &BTreeMap<String, Vec<MessageView>>) {
        let waited: BTreeSet<&str> = self
            .sent
            .iter()
            .filter(|sent| matches!(sent.plan.shape, TurnShape::JobWaited | TurnShape::JobWatched))
            .map(|sent| sent.plan.token.as_str())
            .collect();
        for (token, view) in &jobs.views {
            let Some(session) = &view.session else { continue };
            let notes =
                messages.get(session).into_iter().flatten().filter_map(|message| message.note.as_ref());
            let told = notes.filter(|note| note.contains(&view.id)).count();
            self.report.job_notes += told as u64;
            let wanted = usize::from(!waited.contains(token.as_str()));
            let broken = match told.cmp(&wanted) {
                std::cmp::Ordering::Less => BrokenPromise::Lost,
                std::cmp::Ordering::Greater => BrokenPromise::Duplicated,
                std::cmp::Ordering::Equal => continue,
            };
            let what = format!(
                "the end of {} ({token}) was reported {told} times, not {wanted}, to {session}",
                view.id
            );
            self.report.add(broken, what);
        }
    }

    /// The log has the submission, the start and the end of every job, each once.
    pub fn check_job_events(&mut self, jobs: &JobViews, logged: &[Event]) {
        let mut told: BTreeMap<(String, &str), u64> = BTreeMap::new();
        for event in logged {
            let (job, fact) = match event.body() {
                Some(EventBody::JobSubmitted(job)) => (job.job, "submitted"),
                Some(EventBody::JobStarted(job)) => (job.job, "started"),
                Some(EventBody::JobFinished(job)) => (job.job, "over"),
                Some(EventBody::JobCancelled(job)) => (job.job, "over"),
                // Output events have no fixed number.
                Some(_) | None => continue,
            };
            *told.entry((job, fact)).or_default() += 1;
        }
        for view in jobs.views.values() {
            for fact in ["submitted", "started", "over"] {
                let broken = match told.remove(&(view.id.clone(), fact)).unwrap_or(0) {
                    0 => BrokenPromise::EventMissed,
                    1 => continue,
                    _more => BrokenPromise::EventDoubled,
                };
                self.report.add(broken, format!("the log does not tell once of {}: {fact}", view.id));
            }
        }
        for (job, fact) in told.into_keys() {
            self.report.add(
                BrokenPromise::Duplicated,
                format!("the log contains {job}, which was not submitted by the test: {fact}"),
            );
        }
    }
}

/// How much of a job happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JobExtent {
    Whole,
    /// Its keeper was killed meanwhile: what happened before that happened.
    Cut,
}

/// A job ends as it should, and otherwise only with its keeper.
fn outcome(job: &ExpectedJob, view: &JobView, falls: &[KeeperDeath]) -> Result<JobExtent, BrokenPromise> {
    let error = view.error.as_deref().unwrap_or_default();
    match view.status.as_str() {
        "done" if (view.exit_code, view.signal) == job.kind.outcome() && error.is_empty() => {
            Ok(JobExtent::Whole)
        }
        "error" if error.starts_with(LOST) && view.exit_code.is_none() => {
            if falls_during(view, job.agent, falls) {
                Ok(JobExtent::Cut)
            } else {
                Err(BrokenPromise::Unknown)
            }
        }
        _ => Err(BrokenPromise::Wrong),
    }
}

/// Whether the keeper of a job was killed while it ran.
fn falls_during(view: &JobView, agent: usize, falls: &[KeeperDeath]) -> bool {
    let time = |at: &Option<String>| at.as_deref().and_then(ms_since_1970);
    let (Some(from), Some(to)) = (time(&view.started_at), time(&view.finished_at)) else { return false };
    falls.iter().any(|fall| fall.agent == agent && from <= fall.to_ms && fall.from_ms <= to)
}

impl JobViews {
    /// Whether this is a valid report to a model about the job of its turn.
    pub fn may_say(&self, tool: CrashTool, token: &str, text: &str) -> bool {
        let Some(view) = self.views.get(token) else { return false };
        let [stdout, stderr] = MODEL_JOB.written(token);
        let part = |whole: &str, told: &str| match view.status.as_str() {
            "done" => told == whole,
            _lost => whole.starts_with(told),
        };
        match tool {
            CrashTool::Submit => text == format!(r#"{{"job_id":"{}"}}"#, view.id),
            CrashTool::Watch => part(&stdout, text),
            CrashTool::Wait => serde_json::from_str(text).is_ok_and(|told: Value| {
                let word = |key: &str| told[key].as_str().unwrap_or_default();
                told["job_id"] == view.id.as_str()
                    && told["status"] == view.status.as_str()
                    && told["exit_code"] == serde_json::json!(view.exit_code)
                    && part(&stdout, word("stdout"))
                    && part(&stderr, word("stderr"))
            }),
            CrashTool::Once | CrashTool::Safe => false,
        }
    }
}

/// The last word of what a job's line calls itself.
fn token_of(view: &JobView) -> String {
    let name = view.args.get(2).map(String::as_str).unwrap_or_default();
    name.split_whitespace().next_back().unwrap_or_default().to_owned()
}

async fn all_jobs(client: &mut Client) -> Result<Vec<JobView>, ClientError> {
    let mut params = JobListParams { limit: Some(PAGE_MAX), ..JobListParams::default() };
    let mut found = Vec::new();
    loop {
        let page = client.call::<ListJobs>(&params).await?;
        found.extend(page.jobs);
        params.before = page.next;
        if params.before.is_none() {
            return Ok(found);
        }
    }
}

impl CrashReport {
    /// What is counted of jobs, with its names.
    pub fn job_counts(&self) -> [(String, u64); 4] {
        [
            ("jobs acknowledged".to_owned(), self.jobs),
            ("  cut, their keeper was killed".to_owned(), self.jobs_cut),
            ("  bytes of output compared".to_owned(), self.job_bytes),
            ("  ends told in a note".to_owned(), self.job_notes),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(status: &str, exit_code: Option<i32>, error: Option<&str>) -> JobView {
        JobView {
            id: "job_1".to_owned(),
            agent: "agt_1".to_owned(),
            agent_name: "one".to_owned(),
            session: None,
            bin: "bash".to_owned(),
            args: vec!["-c".to_owned(), "line".to_owned(), "begin-and-go T1".to_owned()],
            status: status.to_owned(),
            exit_code,
            signal: None,
            cause: None,
            error: error.map(str::to_owned),
            priority: 0,
            timeout_ms: None,
            created_at: "1970-01-01T00:00:01.000Z".to_owned(),
            started_at: Some("1970-01-01T00:00:02.000Z".to_owned()),
            finished_at: Some("1970-01-01T00:00:03.000Z".to_owned()),
            stdout_bytes: 0,
            stderr_bytes: 0,
            truncated: false,
            dropped_bytes: 0,
            output_removed: false,
            cancelling: false,
            labels: BTreeMap::new(),
        }
    }

    #[test]
    fn a_job_that_was_lost_although_its_keeper_lived_and_one_with_another_code_are_noticed() {
        let job = ExpectedJob { kind: JobKind::Slow, agent: 0, id: None };
        let fall = |agent, at_ms| KeeperDeath { agent, from_ms: at_ms, to_ms: at_ms };
        let done = |code| view("done", Some(code), None);
        let lost = view("error", None, Some("lost: its sandbox died"));
        assert_eq!(outcome(&job, &done(3), &[]), Ok(JobExtent::Whole));
        assert_eq!(outcome(&job, &done(0), &[]), Err(BrokenPromise::Wrong));
        assert_eq!(outcome(&job, &lost, &[fall(0, 2_500)]), Ok(JobExtent::Cut));
        for elsewhere in [fall(1, 2_500), fall(0, 1_500), fall(0, 3_500)] {
            assert_eq!(outcome(&job, &lost, &[elsewhere]), Err(BrokenPromise::Unknown));
        }
        assert_eq!(outcome(&job, &view("cancelled", None, Some("why")), &[]), Err(BrokenPromise::Wrong));
        assert_eq!(token_of(&lost), "T1");
    }
}
