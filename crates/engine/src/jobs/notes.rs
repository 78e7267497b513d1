//! Reports to a session about ended jobs: once, before its next turn.

use lodge_core::job::{JobRow, JobState, JobWrite};
use lodge_core::limits::NOTE_JOBS_MAX;
use lodge_core::record::{MessageBody, TurnWrite};
use lodge_core::{AgentId, JobId, SessionId, TurnId};

use crate::Engine;

impl Engine {
    /// Adds a note about ended jobs of the session to a starting turn, after the note of the turn that it replaces.
    /// This happens at the start: while the turn waits, the turn before it may report those jobs.
    pub(crate) fn note_jobs(&mut self, id: &TurnId) {
        let Some(turn) = self.turns.get_mut(id) else { return };
        let (agent, session, number) = (turn.row.agent.clone(), turn.row.session.clone(), turn.row.number);
        let told = turn.note.take();
        let Some(news) = self.job_note(&agent, &session) else { return };
        let weight =
            |note: &Option<String>| MessageBody { note: note.clone(), ..MessageBody::default() }.weight();
        let before = weight(&told);
        let note = told.into_iter().chain([news]).collect::<Vec<_>>().join("\n");
        self.step.write(TurnWrite::Note { turn: id.clone(), note: note.clone() });
        if let Some(session) = self.sessions.get_mut(&session) {
            session.epoch.add(number, weight(&Some(note)) - before);
        }
    }

    /// The note for a session, if jobs have ended. They count as reported from then on.
    fn job_note(&mut self, agent: &AgentId, session: &SessionId) -> Option<String> {
        // Another agent's session of the same name may have had jobs before.
        let is_theirs = |id: &JobId| self.jobs.get(id).is_some_and(|row| row.agent == *agent);
        let ended: Vec<JobId> = self.jobs.unreported_of(session).into_iter().filter(is_theirs).collect();
        if ended.is_empty() {
            return None;
        }
        let mut lines = vec!["[Jobs of this session that ended since its last turn:".to_owned()];
        let shown = ended.iter().take(NOTE_JOBS_MAX).filter_map(|id| self.jobs.get(id));
        lines.extend(shown.map(line));
        if ended.len() > NOTE_JOBS_MAX {
            lines.push(format!("and {} more; job_list has them", ended.len() - NOTE_JOBS_MAX));
        }
        lines.push("job_status shows what one of them wrote.]".to_owned());
        for id in &ended {
            self.mark_job_reported(id);
        }
        Some(lines.join("\n"))
    }

    /// The session of an ended job has its report.
    pub(crate) fn mark_job_reported(&mut self, id: &JobId) {
        let is_news = |row: &JobRow| !row.progress.state.is_open() && !row.told && row.session.is_some();
        if self.jobs.get(id).is_some_and(is_news) {
            self.step.write_with_next_commit(JobWrite::Told { id: id.clone() });
            self.jobs.change(id, |row| row.told = true);
        }
    }

    /// The session was deleted, so reports about its jobs have no reader.
    pub(crate) fn session_gone(&mut self, session: &SessionId) {
        let theirs = self.jobs.all().filter(|row| row.session.as_ref() == Some(session) && !row.told);
        let theirs: Vec<JobId> = theirs.map(|row| row.id.clone()).collect();
        self.leave_unreported(theirs);
    }

    /// The same for all sessions of a removed agent.
    pub(crate) fn sessions_over(&mut self, agent: &AgentId) {
        let theirs = self.jobs.of(agent).filter(|row| row.session.is_some() && !row.told);
        let theirs: Vec<JobId> = theirs.map(|row| row.id.clone()).collect();
        self.leave_unreported(theirs);
    }

    fn leave_unreported(&mut self, jobs: Vec<JobId>) {
        for id in jobs {
            self.step.write_with_next_commit(JobWrite::Told { id: id.clone() });
            self.jobs.change(&id, |row| row.told = true);
        }
    }
}

/// `job_… (bin): done, exit code 0, 12 bytes of stdout, 0 of stderr`.
fn line(row: &JobRow) -> String {
    let progress = &row.progress;
    let how = match (progress.exit_code, progress.signal, &progress.error) {
        (_, _, Some(error)) => format!(": {error}"),
        (Some(code), _, None) => format!(", exit code {code}"),
        (None, Some(signal), None) => format!(", ended by signal {signal}"),
        (None, None, None) => String::new(),
    };
    let cause = match progress.cause {
        Some(cause) if progress.state == JobState::Done => format!(" ({})", cause.word()),
        Some(_) | None => String::new(),
    };
    let (id, bin, state) = (&row.id, &row.request.bin, progress.state.word());
    let (stdout, stderr) = (progress.stdout.seen, progress.stderr.seen);
    format!("{id} ({bin}): {state}{how}{cause}, {stdout} bytes of stdout, {stderr} of stderr")
}
