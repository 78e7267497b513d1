//! Answers of the engine, as clients see them.

use lodge_engine::{Answer, ImageAnswer, ImageOrigin, ImageRefusal, Refusal, Rendered};
use lodge_image::RemoteImage;
use lodge_proto::{
    AgentUpdated, AgentView, BinView, ErrorBody, ImageRemoved, ImageView, JobView, LineageView,
    QuarantineView, SessionDeleted, SessionView, TokenView, TurnView,
};
use serde::Serialize;
use serde_json::Value;

use super::{json, refused};

/// What a change is answered.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum AnswerView {
    Agent(Box<AgentView>),
    AgentUpdated(Box<AgentUpdated>),
    Lineage(Box<LineageView>),
    Turn(Box<TurnView>),
    Session(Box<SessionView>),
    SessionDeleted(SessionDeleted),
    Job(Box<JobView>),
    Image(Box<ImageView>),
    Bin(Box<BinView>),
    ImageRemoved(ImageRemoved),
    Token(Box<TokenView>),
    Work(Box<QuarantineView>),
    Rendered(Value),
}

pub fn answer(answer: &Answer) -> Value {
    match answer_view(answer) {
        AnswerView::Rendered(value) => value,
        view => json(&view),
    }
}

/// An answer as it is recorded with its request.
pub fn rendered(answer: &Answer) -> Rendered {
    text(&answer_view(answer))
}

/// A shape as text. As with [`json`], this cannot fail.
pub fn text<T: Serialize>(shape: &T) -> Rendered {
    Rendered(serde_json::to_string(shape).unwrap_or_default().into_boxed_str())
}

fn answer_view(answer: &Answer) -> AnswerView {
    match answer {
        Answer::Agent(agent) => {
            let aside = agent.quarantine.iter().map(|row| super::quarantined(row, "quarantined"));
            let shown =
                AgentView { quarantine: aside.collect(), ..super::agent(&agent.row, agent.at_work, None) };
            match &agent.in_force {
                Some(in_force) => AnswerView::AgentUpdated(Box::new(super::updated(shown, in_force))),
                None => AnswerView::Agent(Box::new(shown)),
            }
        }
        Answer::Lineage(lineage) => {
            let (policy, last_turn) = (lineage.policy, lineage.last_turn.clone());
            let shown = super::lineage(&lineage.row, &lineage.agent_name, policy, last_turn);
            AnswerView::Lineage(Box::new(shown))
        }
        Answer::Turn(turn) => AnswerView::Turn(Box::new(super::full_turn((**turn).clone()))),
        Answer::Session(session) => AnswerView::Session(Box::new(super::session(session))),
        Answer::SessionDeleted(id) => {
            AnswerView::SessionDeleted(SessionDeleted { session: id.to_string(), deleted: true })
        }
        Answer::Job(job) => AnswerView::Job(Box::new(super::job(&job.row, &job.agent_name))),
        Answer::Image(image) => image_view(image),
        Answer::ImageRemoved(gone) => AnswerView::ImageRemoved(ImageRemoved {
            digest: gone.digest.clone(),
            untagged: gone.untagged.clone(),
            removed: gone.removed,
        }),
        Answer::Token(token) => AnswerView::Token(Box::new(super::token(&token.row, token.at))),
        Answer::Work(work) => AnswerView::Work(Box::new(super::quarantined(&work.row, work.release.word()))),
        // Rendered by this function before, in this release or an earlier one.
        Answer::Rendered(text) => AnswerView::Rendered(serde_json::from_str(&text.0).unwrap_or_default()),
    }
}

fn image_view(image: &ImageAnswer) -> AnswerView {
    let shown = ImageView {
        digest: image.digest.clone(),
        refs: image.refs.clone(),
        named: image.named.clone(),
        size_bytes: image.bytes,
        agents: image.agents,
        created_at: image.named_at.to_string(),
        complete: image.complete,
    };
    match &image.bin {
        None => AnswerView::Image(Box::new(shown)),
        Some(bin) => AnswerView::Bin(Box::new(super::new_bin(shown, &bin.record, bin.users))),
    }
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
