//! Turns whose whole course is known beforehand: what is sent, which effects follow, what the answer is.

use serde_json::{Value, json};

use super::rng::Rng;

/// Which provider the agents use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Model {
    /// The scripted model inside the daemon.
    Script,
    /// An OpenAI-compatible server over HTTP that cuts streams and fails.
    OpenAi,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// An answer in one piece.
    Plain,
    /// An answer in many pieces.
    Stream,
    /// One tool, whose output is in the answer.
    Tool,
    /// One tool that takes its time.
    Slow,
    /// Two tools side by side.
    Pair,
    /// A tool, then another.
    Chain,
    /// One tool that is still at work when everything else is over, unless somebody ends it.
    Long,
}

const CHUNKS: u64 = 8;
const CHUNK_MS: u64 = 12;

impl Shape {
    /// Those that end by themselves in good time.
    pub const USUAL: [Shape; 6] =
        [Shape::Plain, Shape::Stream, Shape::Tool, Shape::Slow, Shape::Pair, Shape::Chain];

    fn word(self) -> &'static str {
        match self {
            Shape::Plain => "be-plain",
            Shape::Stream => "be-streaming",
            Shape::Tool => "use-one",
            Shape::Slow => "use-slow",
            Shape::Pair => "use-pair",
            Shape::Chain => "use-chain",
            Shape::Long => "use-long",
        }
    }

    /// The calls of each step: a key, and the seconds it takes.
    pub fn steps(self) -> &'static [&'static [(&'static str, &'static str)]] {
        match self {
            Shape::Plain | Shape::Stream => &[],
            Shape::Tool => &[&[("a", "0.02")]],
            Shape::Slow => &[&[("a", "0.2")]],
            Shape::Pair => &[&[("a", "0.05"), ("b", "0.02")]],
            Shape::Chain => &[&[("a", "0")], &[("b", "0.03")]],
            Shape::Long => &[&[("a", "6")]],
        }
    }

    /// The last tool's output is in the answer where it is certain which one that is.
    fn tells_tool(self) -> bool {
        match self {
            Shape::Plain | Shape::Stream | Shape::Pair => false,
            Shape::Tool | Shape::Slow | Shape::Chain | Shape::Long => true,
        }
    }

    fn streams(self) -> bool {
        match self {
            Shape::Stream | Shape::Chain => true,
            Shape::Plain | Shape::Tool | Shape::Slow | Shape::Pair | Shape::Long => false,
        }
    }
}

/// One turn, and everything that must come of it.
#[derive(Debug, Clone)]
pub struct TurnPlan {
    pub shape: Shape,
    pub token: String,
    /// What the user sends.
    pub text: String,
    pub answer: String,
}

impl TurnPlan {
    pub fn new(model: Model, shape: Shape, token: &str, tool_line: &str, rng: &mut Rng) -> TurnPlan {
        let text = match model {
            Model::Script => format!("{} {token}", shape.word()),
            Model::OpenAi => commands(shape, token, tool_line, rng),
        };
        let said = match shape.steps().last().and_then(|calls| calls.last()) {
            Some((key, _)) if shape.tells_tool() => did(token, key),
            Some(_) | None => String::new(),
        };
        let answer = match model {
            Model::Script => answer(&text, &said),
            Model::OpenAi => answer(token, &said),
        };
        TurnPlan { shape, token: token.to_owned(), text, answer }
    }

    /// The keys of all calls, in the order of the steps.
    pub fn keys(&self) -> impl Iterator<Item = &'static str> {
        self.shape.steps().iter().flat_map(|calls| calls.iter().map(|(key, _)| *key))
    }

    pub fn effects(&self) -> impl Iterator<Item = String> {
        let token = self.token.clone();
        self.keys().flat_map(move |key| [format!("{token}.{key}.begin"), format!("{token}.{key}.end")])
    }
}

/// What a tool prints.
pub fn did(token: &str, key: &str) -> String {
    format!("did {token}.{key}\n")
}

fn answer(to: &str, said: &str) -> String {
    format!("This is the answer to {to}, at some length, so that it comes in pieces. {said}")
}

fn commands(shape: Shape, token: &str, tool_line: &str, rng: &mut Rng) -> String {
    let mut text = format!("{} {token}", shape.word());
    for calls in shape.steps() {
        for (place, (key, seconds)) in calls.iter().enumerate() {
            let word = if place == 0 { "tool" } else { "and" };
            let args = json!(["-c", tool_line, token, key, seconds]);
            text.push_str(&format!(" [[{word}:bash|{args}]]"));
        }
    }
    if shape.streams() {
        text.push_str(&format!(" [[chunks:{CHUNKS}:{CHUNK_MS}]]"));
    }
    let faults =
        ["", "", "", "[[cut:1]]", "[[cut:3]]", "[[status-once:500]]", "[[garbage-once]]", "[[error-once]]"];
    text.push_str(rng.pick::<&str>(&faults));
    let said = if shape.tells_tool() { "{{tool}}" } else { "" };
    text.push_str(&format!("[[reply:{}]]", answer(token, said)));
    text
}

/// The scripted model's file; JSON is YAML.
pub fn script(tool_line: &str) -> Value {
    let turns = Shape::USUAL.into_iter().chain([Shape::Long]).map(|shape| {
        let mut steps: Vec<Value> = shape
            .steps()
            .iter()
            .map(|calls| {
                let calls: Vec<Value> = calls
                    .iter()
                    .map(|(key, seconds)| json!({"name": "bash", "args": ["-c", tool_line, "{{input}}", key, seconds]}))
                    .collect();
                json!({"calls": calls})
            })
            .collect();
        let said = if shape.tells_tool() { "{{tool}}" } else { "" };
        let mut last = json!({"text": answer("{{input}}", said)});
        if shape.streams() {
            last["chunks"] = CHUNKS.into();
            last["chunk-delay"] = format!("{CHUNK_MS}ms").into();
        }
        steps.push(last);
        json!({"when": shape.word(), "steps": steps})
    });
    json!({"turns": turns.collect::<Vec<Value>>()})
}
