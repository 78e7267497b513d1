//! Joins a turn that began before: shows what was said of it so far, each step as it stands now, then follows it.
//!
//! Owns: the part before the reader joined. Never: what is shown of an event (see `answer`).

use lodge_proto::{EventListParams, ListEvents, PAGE_MAX, TurnView};

use super::broken_turn::{
    TurnAfterAgent, abandoned, agent_stands_still, check_turn, interrupted, quarantined,
};
use super::{
    PromptedAgent, ShownSteps, TurnEnding, TurnScreen, TurnSeen, TurnVerdict, WayToContinue, conclude,
    failed_turn, find_quarantine, follow_on, text_of,
};
use crate::failure::CommandFailure;
use crate::fold::FoldAction;
use crate::follow::{DaemonClient, FollowScope};
use crate::words::{Words, put};

/// Follows a turn that may have begun, or ended, before: as `follow`, from the turn's beginning.
pub(crate) async fn rejoin(
    daemon: &mut DaemonClient<'_>,
    agent: &PromptedAgent,
    turn: &TurnView,
    words: &Words,
    show: ShownSteps,
) -> Result<TurnEnding, CommandFailure> {
    let Some(since) = turn.since else { return copied(daemon, agent, turn, words, show).await };
    let mut screen = TurnScreen::new(words, show);
    screen.replayed = Some(ReplayedText::default());
    let (verdict, head) = replay(daemon, turn, since, &mut screen).await?;
    screen.end_replay()?;
    if let Some(over) = verdict {
        words.end_line()?;
        return Ok(ended(daemon, agent, turn, over).await);
    }
    daemon.watch(FollowScope::Agent(agent.id.clone()), Some(head)).await?;
    // What began before the watch is not reported by an event.
    if let Some(work) = find_quarantine(daemon, turn).await? {
        words.end_line()?;
        return Ok(TurnEnding::Broken(quarantined(&work, agent, turn)));
    }
    if let Some(end) = agent_stands_still(daemon, agent).await
        && let TurnAfterAgent::Left(left) = check_turn(daemon, agent, turn).await
    {
        words.end_line()?;
        return Ok(TurnEnding::Broken(abandoned(&end, left, agent, turn)));
    }
    follow_on(daemon, agent, turn, screen, TurnSeen::Accepted).await
}

/// Reads the events of a turn. Returns how it ended, if it has, and the newest sequence that was read.
async fn replay(
    daemon: &mut DaemonClient<'_>,
    turn: &TurnView,
    since: u64,
    screen: &mut TurnScreen<'_>,
) -> Result<(Option<TurnVerdict>, u64), CommandFailure> {
    let mut since = since;
    loop {
        let params = EventListParams {
            since: Some(since),
            session: Some(turn.session.clone()),
            limit: Some(PAGE_MAX),
            ..EventListParams::default()
        };
        let page = daemon.call::<ListEvents>(params).await?;
        for event in page.events.iter().filter(|event| text_of(&event.data, "turn") == Some(&turn.id)) {
            if let Some(over) = screen.event(event)? {
                return Ok((Some(over), page.head));
            }
        }
        match page.next {
            Some(next) => since = next,
            None => return Ok((None, page.head)),
        }
    }
}

/// A turn without events of its own: a fork copied it, after it had ended.
async fn copied(
    daemon: &mut DaemonClient<'_>,
    agent: &PromptedAgent,
    turn: &TurnView,
    words: &Words,
    show: ShownSteps,
) -> Result<TurnEnding, CommandFailure> {
    if show == ShownSteps::All && !words.json && !turn.text.is_empty() {
        put(&format!("{}\n", turn.text.trim_end()))?;
    }
    let verdict = match (turn.status.as_str(), turn.error.clone()) {
        ("done", _) => TurnVerdict::Done,
        (_, Some(error)) => TurnVerdict::Failed(failed_turn(&error.code, &error.message, error.hint)),
        (_, None) => TurnVerdict::Interrupted,
    };
    Ok(ended(daemon, agent, turn, verdict).await)
}

/// The end of a turn some time ago: the present state of its agent does not explain it.
async fn ended(
    daemon: &mut DaemonClient<'_>,
    agent: &PromptedAgent,
    turn: &TurnView,
    verdict: TurnVerdict,
) -> TurnEnding {
    match verdict {
        TurnVerdict::Interrupted => {
            let (way, turn) = WayToContinue::look_up(daemon, turn).await;
            TurnEnding::Broken(interrupted(None, agent, &turn, way))
        }
        verdict @ (TurnVerdict::Done | TurnVerdict::Failed(_)) => {
            conclude(daemon, agent, turn, verdict, None).await
        }
    }
}

/// What was said before, without the text of attempts that were cut.
#[derive(Debug, Default)]
pub(super) struct ReplayedText {
    lines: Vec<ReplayedLine>,
    /// What the turn waits for, while nothing came after it.
    wait: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
enum ReplayedLine {
    /// The text of a step.
    Text(Vec<u8>),
    Tool(String),
}

impl ReplayedText {
    pub(super) fn apply(&mut self, actions: Vec<FoldAction>) {
        for action in actions {
            match action {
                FoldAction::Print(bytes) => match self.open_text() {
                    Some(text) => text.extend(bytes),
                    None => self.lines.push(ReplayedLine::Text(bytes)),
                },
                // The replaced text is the newest one, perhaps with tool calls after it.
                FoldAction::Restart => {
                    if let Some(text) = self.open_text() {
                        text.clear();
                    }
                }
                FoldAction::NewStep => self.lines.push(ReplayedLine::Text(Vec::new())),
            }
        }
    }

    pub(super) fn wait(&mut self, line: Option<String>) {
        self.wait = line;
    }

    pub(super) fn tool(&mut self, line: String) {
        self.lines.push(ReplayedLine::Tool(line));
    }

    fn open_text(&mut self) -> Option<&mut Vec<u8>> {
        self.lines.iter_mut().rev().find_map(|line| match line {
            ReplayedLine::Text(text) => Some(text),
            ReplayedLine::Tool(_) => None,
        })
    }
}

impl TurnScreen<'_> {
    /// Shows what was read. What follows is shown as it comes.
    fn end_replay(&mut self) -> Result<(), CommandFailure> {
        let ReplayedText { lines, wait } = self.replayed.take().unwrap_or_default();
        for line in lines {
            match line {
                ReplayedLine::Text(text) if text.is_empty() => {}
                ReplayedLine::Text(text) => {
                    self.words.end_line()?;
                    self.words.part(&text)?;
                }
                ReplayedLine::Tool(line) => self.tool(line)?,
            }
        }
        if let Some(line) = wait {
            self.print_wait(&line)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(text: &str) -> FoldAction {
        FoldAction::Print(text.as_bytes().to_vec())
    }

    fn text(text: &str) -> ReplayedLine {
        ReplayedLine::Text(text.as_bytes().to_vec())
    }

    #[test]
    fn an_attempt_that_was_cut_is_replaced_and_steps_stay_apart() {
        let mut replayed = ReplayedText::default();
        replayed.apply(vec![print("loo"), print("king")]);
        replayed.tool("⚙ sh".to_owned());
        replayed.apply(vec![FoldAction::NewStep, print("fou")]);
        replayed.apply(vec![FoldAction::Restart, print("it is here")]);
        let expected = [text("looking"), ReplayedLine::Tool("⚙ sh".to_owned()), text("it is here")];
        assert_eq!(replayed.lines, expected);
        replayed.apply(vec![FoldAction::Restart]);
        assert_eq!(replayed.lines[2], text(""));
    }
}
