//! People who talk to agents without a pause, through every absence of the daemon.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lodge_proto::client::{Client, ClientError, Target};
use lodge_testkit::lodge::PATIENCE;
use serde_json::json;
use tokio::task::JoinHandle;

use crate::follow::OutliveFollower;
use crate::world::sh;

/// Between two attempts to send, and two looks for an end.
const AGAIN: Duration = Duration::from_millis(5);

/// What a turn is made of.
#[derive(Debug, Clone, Copy)]
enum LoadShape {
    Plain,
    Streaming,
    Tool,
    /// Long enough to be at work when the daemon goes.
    SlowTool,
}

const SHAPES: [LoadShape; 4] = [LoadShape::Plain, LoadShape::SlowTool, LoadShape::Streaming, LoadShape::Tool];

/// A message that was accepted.
#[derive(Debug)]
pub struct AcceptedMessage {
    pub turn: String,
    /// What the answer must be.
    pub answer: String,
    /// Lines that its tool writes to `ran`, each once.
    pub effects: Vec<String>,
}

/// One person in one session, who sends the next message when the answer to the last one was seen.
#[derive(Debug)]
pub struct LoadTalker {
    pub session: String,
    enough: Arc<AtomicBool>,
    task: JoinHandle<Vec<AcceptedMessage>>,
}

impl LoadTalker {
    pub fn start(
        target: Target,
        token: String,
        agent: &str,
        session: &str,
        follower: Arc<OutliveFollower>,
    ) -> LoadTalker {
        let enough: Arc<AtomicBool> = Arc::default();
        let voice =
            LoadSession { target, token, agent: agent.to_owned(), session: session.to_owned(), follower };
        let task = tokio::spawn(voice.talk(enough.clone()));
        LoadTalker { session: session.to_owned(), enough, task }
    }

    pub fn is_talking(&self) -> bool {
        !self.task.is_finished()
    }

    /// Waits for the last answer, and returns the whole conversation.
    pub async fn finish(self) -> Vec<AcceptedMessage> {
        self.enough.store(true, Ordering::SeqCst);
        self.task.await.expect("nothing went wrong")
    }
}

struct LoadSession {
    target: Target,
    token: String,
    agent: String,
    session: String,
    follower: Arc<OutliveFollower>,
}

impl LoadSession {
    async fn talk(self, enough: Arc<AtomicBool>) -> Vec<AcceptedMessage> {
        let mut said = Vec::new();
        while !enough.load(Ordering::SeqCst) {
            let shape = SHAPES[said.len() % SHAPES.len()];
            let word = format!("{}x{}", self.session, said.len());
            let turn = self.send(&word, &shape.message(&word)).await;
            let until = Instant::now() + PATIENCE;
            while self.follower.end_of(&turn).is_none() {
                assert!(Instant::now() < until, "turn {turn} ({word}) does not end");
                tokio::time::sleep(AGAIN).await;
            }
            said.push(AcceptedMessage { turn, answer: shape.answer(&word), effects: shape.effects(&word) });
        }
        said
    }

    /// Sends until it is answered. The request's id makes it one message, however often it is sent.
    async fn send(&self, word: &str, text: &str) -> String {
        let message = json!({"agent": self.agent, "session": self.session, "text": text, "request_id": word});
        let until = Instant::now() + PATIENCE;
        loop {
            let answer = async {
                let mut client = Client::connect(&self.target, &self.token).await?;
                client.call_value("turn/send", message.clone()).await
            };
            match answer.await {
                Ok(view) => return view["id"].as_str().expect("an id").to_owned(),
                Err(ClientError::Refused(body)) if body.data.code != "daemon.shutting_down" => {
                    panic!("{word} was refused: {body:?}")
                }
                Err(error) => assert!(Instant::now() < until, "{word} was not accepted: {error:?}"),
            }
            tokio::time::sleep(AGAIN).await;
        }
    }
}

impl LoadShape {
    fn message(self, word: &str) -> String {
        let tool = |script: &str| format!("{} [[reply:{{{{tool}}}}]]", sh(script));
        match self {
            LoadShape::Plain => format!("[[reply:{}]]", self.answer(word)),
            LoadShape::Streaming => format!("[[chunks:8:20]] [[reply:{}]]", self.answer(word)),
            LoadShape::Tool => tool(&format!("echo {word} >> ran; echo did {word}")),
            LoadShape::SlowTool => {
                tool(&format!("echo {word}.begin >> ran; sleep 0.3; echo {word}.end >> ran; echo did {word}"))
            }
        }
    }

    fn answer(self, word: &str) -> String {
        match self {
            LoadShape::Plain => word.to_owned(),
            LoadShape::Streaming => format!("{word} in several pieces"),
            LoadShape::Tool | LoadShape::SlowTool => format!("did {word}\n"),
        }
    }

    fn effects(self, word: &str) -> Vec<String> {
        match self {
            LoadShape::Plain | LoadShape::Streaming => Vec::new(),
            LoadShape::Tool => vec![word.to_owned()],
            LoadShape::SlowTool => vec![format!("{word}.begin"), format!("{word}.end")],
        }
    }
}
