//! Answers of the engine, as clients see them. Each aggregate shows its own.

use lodge_engine::{Answer, ImageOrigin, ImageRefusal, Refusal, RenderedAnswer};
use lodge_image::RemoteImage;
use lodge_proto::{
    AgentUpdated, AgentView, BinView, ErrorBody, ExecView, ImageRemoved, ImageView, JobView, LineageView,
    QuarantineView, SandboxView, SessionDeleted, SessionView, TokenView, TurnView,
};
use serde::Serialize;

use super::{agents, images, refused, sessions};

/// Declares the replies that the engine gives, each with its shape.
macro_rules! engine_replies {
    ($($variant:ident($view:ident),)*) => {
        /// A reply of the engine, as clients see it.
        #[derive(Debug, Serialize)]
        #[serde(untagged)]
        pub enum AnswerView {
            $($variant(Box<$view>),)*
        }

        $(impl EngineReply for $view {
            fn from_view(view: AnswerView) -> Option<Self> {
                if let AnswerView::$variant(view) = view { Some(*view) } else { None }
            }

            fn is(view: &AnswerView) -> bool {
                matches!(view, AnswerView::$variant(_))
            }
        })*
    };
}

/// A reply that the engine gives.
pub trait EngineReply: Sized {
    fn from_view(view: AnswerView) -> Option<Self>;
    fn is(view: &AnswerView) -> bool;
}

engine_replies! {
    Agent(AgentView),
    AgentUpdated(AgentUpdated),
    Lineage(LineageView),
    Turn(TurnView),
    Session(SessionView),
    SessionDeleted(SessionDeleted),
    Job(JobView),
    Sandbox(SandboxView),
    SandboxExec(ExecView),
    Image(ImageView),
    Bin(BinView),
    ImageRemoved(ImageRemoved),
    Token(TokenView),
    Work(QuarantineView),
}

/// An answer as it is recorded with its request.
pub fn rendered(answer: &Answer) -> RenderedAnswer {
    match answer_view(answer) {
        Ok(view) => text(&view),
        Err(recorded) => recorded.clone(),
    }
}

/// A shape as JSON text. The shapes of the API have string keys and finite numbers, so this cannot fail.
pub fn text<T: Serialize>(shape: &T) -> RenderedAnswer {
    RenderedAnswer(serde_json::to_string(shape).unwrap_or_default().into_boxed_str())
}

/// An answer with its shape, or as it was rendered before, in this release or an earlier one.
pub fn answer_view(answer: &Answer) -> Result<AnswerView, &RenderedAnswer> {
    Ok(match answer {
        Answer::Agent(answer) => agents::answer(answer),
        Answer::Turn(turn) => AnswerView::Turn(Box::new(super::full_turn((**turn).clone()))),
        Answer::Session(answer) => sessions::answer(answer),
        Answer::Job(job) => AnswerView::Job(Box::new(super::job(&job.row, &job.agent_name))),
        Answer::Sandbox(row) => AnswerView::Sandbox(Box::new(super::sandbox(row, None))),
        Answer::SandboxExec(row) => AnswerView::SandboxExec(Box::new(super::exec(row))),
        Answer::Image(answer) => images::answer(answer),
        Answer::Token(token) => AnswerView::Token(Box::new(super::token(&token.row, token.at))),
        Answer::Work(work) => AnswerView::Work(Box::new(super::quarantined(&work.row, work.release.word()))),
        Answer::Rendered(text) => return Err(text),
    })
}

/// The refusal of an image that is not here, with the way to get it.
pub fn no_image(given: &str) -> ErrorBody {
    refused(image_not_found(given))
}

pub fn image_not_found(given: &str) -> Refusal {
    let origin = match RemoteImage::read(given) {
        Ok(Some(_)) => ImageOrigin::Registry,
        Ok(None) | Err(_) => ImageOrigin::Local,
    };
    ImageRefusal::NotFound { given: given.to_owned(), origin }.into()
}
