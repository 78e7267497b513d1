//! Keys that are pressed while a turn runs.

use std::collections::VecDeque;

use super::editor::{Editor, EditorOutcome};
use super::keys::Key;
use super::slash::{self, ChatLine};
use super::{QUEUED_MAX, jobs};
use crate::commands::CommandContext;
use crate::failure::{CommandExit, CommandFailure};
use crate::render;
use crate::words::Words;

/// What was typed while a turn runs.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum InputDuringTurn {
    Typed,
    Interrupt,
    Leave,
    Look(JobQuery),
}

/// What can be asked about jobs at any time: the turn that runs may be waiting for one.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum JobQuery {
    Jobs(Option<String>),
    Job(String),
    Cancel(String),
}

impl JobQuery {
    /// Whether it went well. Anything but a refusal ends the conversation.
    pub(super) async fn at(self, context: &CommandContext, session: &str) -> Result<bool, CommandFailure> {
        let looked = match self {
            JobQuery::Jobs(status) => jobs::list(context, Some(session), status).await,
            JobQuery::Job(id) => jobs::show(context, Some(session), &id).await,
            JobQuery::Cancel(id) => jobs::cancel(context, Some(session), &id).await,
        };
        match looked {
            Ok(()) => Ok(true),
            Err(CommandFailure::Told(report)) if report.exit == CommandExit::Refused => {
                render::error(&report);
                Ok(false)
            }
            Err(failure) => Err(failure),
        }
    }
}

/// A key that is pressed while a turn runs. Questions about jobs are answered at once; other lines wait for the end of
/// the turn. Unsent text appears at the next prompt.
pub(super) fn apply_key_during_turn(
    key: Key,
    editor: &mut Editor,
    queued: &mut VecDeque<String>,
    words: &Words,
) -> InputDuringTurn {
    match key {
        Key::Escape | Key::Ctrl('c') => return InputDuringTurn::Interrupt,
        Key::Ctrl('d') => return InputDuringTurn::Leave,
        Key::Enter => match slash::read(&editor.text()) {
            ChatLine::Nothing => drop(editor.apply_key(Key::Enter)),
            ChatLine::Command(slash::SlashCommand::Quit) => return InputDuringTurn::Leave,
            ChatLine::Command(slash::SlashCommand::Jobs(status)) => {
                drop(editor.apply_key(Key::Enter));
                return InputDuringTurn::Look(JobQuery::Jobs(status));
            }
            ChatLine::Command(slash::SlashCommand::Job(id)) => {
                drop(editor.apply_key(Key::Enter));
                return InputDuringTurn::Look(JobQuery::Job(id));
            }
            ChatLine::Command(slash::SlashCommand::Cancel(id)) => {
                drop(editor.apply_key(Key::Enter));
                return InputDuringTurn::Look(JobQuery::Cancel(id));
            }
            ChatLine::Text(_) | ChatLine::Command(_) if queued.len() == QUEUED_MAX => {
                words.print_dimmed_note(&format!(
                    "{QUEUED_MAX} lines are queued already; this one is kept for the next prompt"
                ));
            }
            ChatLine::Text(_) | ChatLine::Command(_) => {
                if let EditorOutcome::Sent(line) = editor.apply_key(Key::Enter) {
                    words.print_dimmed_note(&format!("queued: {}", render::one_line(&line)));
                    queued.push_back(line);
                }
            }
        },
        key => drop(editor.apply_key(key)),
    }
    InputDuringTurn::Typed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(text: &str, editor: &mut Editor, queued: &mut VecDeque<String>) -> InputDuringTurn {
        let words = Words::new(true, false);
        for letter in text.chars() {
            assert_eq!(
                apply_key_during_turn(Key::Char(letter), editor, queued, &words),
                InputDuringTurn::Typed
            );
        }
        apply_key_during_turn(Key::Enter, editor, queued, &words)
    }

    #[test]
    fn lines_that_are_typed_during_a_turn_wait_in_order_and_quit_does_not() {
        let (mut editor, mut queued) = (Editor::default(), VecDeque::new());
        for line in ["one", "  ", "/session new"] {
            assert_eq!(typed(line, &mut editor, &mut queued), InputDuringTurn::Typed);
        }
        assert_eq!(queued, ["one", "/session new"]);
        assert_eq!(typed("/quit", &mut editor, &mut queued), InputDuringTurn::Leave);
        let words = Words::new(true, false);
        assert_eq!(
            apply_key_during_turn(Key::Ctrl('d'), &mut editor, &mut queued, &words),
            InputDuringTurn::Leave
        );
        assert_eq!(
            apply_key_during_turn(Key::Escape, &mut editor, &mut queued, &words),
            InputDuringTurn::Interrupt
        );
    }

    #[test]
    fn jobs_can_be_looked_at_while_a_turn_waits_for_them() {
        let (mut editor, mut queued) = (Editor::default(), VecDeque::new());
        let mut look = |line: &str| typed(line, &mut editor, &mut queued);
        assert_eq!(look("/jobs running"), InputDuringTurn::Look(JobQuery::Jobs(Some("running".into()))));
        assert_eq!(look("/job job_1"), InputDuringTurn::Look(JobQuery::Job("job_1".into())));
        assert_eq!(look("/cancel job_1"), InputDuringTurn::Look(JobQuery::Cancel("job_1".into())));
        assert_eq!((queued.len(), editor.text()), (0, String::new()));
    }

    #[test]
    fn a_line_too_many_is_not_lost() {
        let (mut editor, mut queued) = (Editor::default(), VecDeque::new());
        for at in 0..=QUEUED_MAX {
            typed(&format!("line {at}"), &mut editor, &mut queued);
        }
        assert_eq!((queued.len(), editor.text()), (QUEUED_MAX, format!("line {QUEUED_MAX}")));
        editor.apply_key(Key::Ctrl('u'));
        assert_eq!(typed("/quit", &mut editor, &mut queued), InputDuringTurn::Leave);
    }
}
