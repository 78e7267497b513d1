//! Answers to callers. The API renders them; the engine knows no wire formats.

use lodge_core::sandbox::{SandboxExecRow, SandboxRow};
use lodge_core::summary::TurnDetail;

use crate::agents::messages::AgentAnswer;
use crate::images::messages::ImageAnswer;
use crate::jobs::JobAnswer;
use crate::quarantine::ReleasedWork;
use crate::sessions::messages::SessionAnswer;
use crate::tokens::messages::TokenAnswer;

/// An answer, by aggregate. Each aggregate defines its own.
#[derive(Debug, Clone)]
pub enum Answer {
    Agent(AgentAnswer),
    Turn(Box<TurnDetail>),
    Session(SessionAnswer),
    Job(Box<JobAnswer>),
    Sandbox(Box<SandboxRow>),
    SandboxExec(Box<SandboxExecRow>),
    Image(ImageAnswer),
    Token(Box<TokenAnswer>),
    Work(Box<ReleasedWork>),
    Rendered(RenderedAnswer),
}

macro_rules! answer_of {
    ($($answer:ident => $aggregate:ident),* $(,)?) => {$(
        impl From<$answer> for Answer {
            fn from(answer: $answer) -> Answer {
                Answer::$aggregate(answer)
            }
        }
    )*};
}

answer_of! {
    AgentAnswer => Agent,
    SessionAnswer => Session,
    ImageAnswer => Image,
    RenderedAnswer => Rendered,
}

/// An answer as a client reads it, rendered by the API: now, or when the request was first decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedAnswer(pub Box<str>);

/// Renders an answer, to be recorded with the id of its request.
pub type AnswerRenderer = fn(&Answer) -> RenderedAnswer;
