//! Turns that began before: the one in flight is joined, the last one is continued.

use lodge_proto::{
    GetSession, GetTurn, ListTurns, RetryTurn, SessionRef, TurnListParams, TurnRef, TurnRetryParams,
};

use super::editor::Editor;
use super::terminal::Terminal;
use super::{BEGINS, Chat, ChatInput, ChatNext, TurnBegin};
use crate::commands::request_id;
use crate::commands::turns::taken_over;
use crate::failure::CommandFailure;
use crate::follow::FollowScope;

impl Chat<'_> {
    /// Joins the turn in flight, and sends the lines that were typed meanwhile.
    pub(super) async fn join(
        &mut self,
        terminal: &mut Terminal,
        editor: &mut Editor,
    ) -> Result<ChatNext, CommandFailure> {
        let next = self.follow_in_flight(terminal, editor).await?;
        match (next, self.queued.pop_front()) {
            (ChatNext::GoOn, Some(line)) => {
                terminal.leave_line(&line);
                self.lines(line, terminal, editor).await
            }
            (next, Some(line)) => {
                self.queued.push_front(line);
                Ok(next)
            }
            (next, None) => Ok(next),
        }
    }

    /// Follows the turn in flight of the session, then the turns behind it.
    pub(super) async fn follow_in_flight(
        &mut self,
        terminal: &mut Terminal,
        editor: &mut Editor,
    ) -> Result<ChatNext, CommandFailure> {
        while let Some(id) = self.in_flight.take() {
            let mut daemon = self.context.daemon().await?;
            let turn = daemon.call::<GetTurn>(TurnRef { turn: id.clone() }).await?;
            let typed = ChatInput::Keys(terminal, editor);
            match self.show_turn(&mut daemon, turn, typed, TurnBegin::Earlier).await {
                Ok(ChatNext::GoOn) => {}
                Ok(left @ (ChatNext::Leave | ChatNext::LeaveTurn)) => return Ok(left),
                Err(failure) => self.refused(failure)?,
            }
            let Some(session) = self.session.clone() else { break };
            let view = daemon.call::<GetSession>(SessionRef { session }).await?.session;
            // A turn that cannot go on now stays in flight.
            self.in_flight = view.running.or_else(|| view.queued.first().cloned()).filter(|next| *next != id);
        }
        Ok(ChatNext::GoOn)
    }

    /// Continues the last turn of the session.
    pub(super) async fn retry(&mut self, typed: ChatInput<'_>) -> Result<ChatNext, CommandFailure> {
        let Some(session) = self.session.clone() else {
            self.context.words.print_message(BEGINS);
            return Ok(ChatNext::GoOn);
        };
        let mut daemon = self.context.daemon().await?;
        daemon.watch(FollowScope::Agent(self.agent.id.clone()), None).await?;
        let params =
            TurnListParams { session, newest_first: true, limit: Some(1), ..TurnListParams::default() };
        let Some(last) = daemon.call::<ListTurns>(params).await?.turns.into_iter().next() else {
            self.context.words.print_message("this session has no turns");
            return Ok(ChatNext::GoOn);
        };
        let params = TurnRetryParams { turn: last.id, request_id: Some(request_id()?) };
        let turn = daemon.call::<RetryTurn>(params).await?;
        self.context.words.print_dimmed_note(&taken_over(&turn));
        self.show_turn(&mut daemon, turn, typed, TurnBegin::Now).await
    }
}
