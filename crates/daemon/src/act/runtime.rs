//! The runtime protocol, as the daemon speaks it: newline-delimited JSON-RPC through the keeper.

use std::collections::BTreeMap;

use lodge_core::epoch::{EpochWeight, Strategy};
use lodge_core::job::JobState;
use lodge_core::record::{AgentRow, CallRecord, FailureRecord, ImageRecord};
use lodge_core::{JobId, TurnId};
use lodge_model::{CallParams, ToolSpec};
use serde::Deserialize;
use serde_json::{Value, json};

use super::layout::Layout;
use lodge_engine::Ask;
use lodge_engine::jobs::{JobWish, JobWork};

/// Jobs that a model is shown at a time: where it does not say, and at most.
const JOBS_LISTED: u32 = 20;
const JOBS_LISTED_MAX: u32 = 100;

/// What a runtime said about itself when it got ready.
#[derive(Debug)]
pub struct Profile {
    pub context: String,
    pub system: String,
    tools: Vec<ToolText>,
    pub params: CallParams,
}

/// A tool with its schema as text: every agent's are kept, and a parsed schema is many times as large.
#[derive(Debug)]
struct ToolText {
    name: String,
    description: String,
    parameters: Box<str>,
}

impl Profile {
    /// The tools as a model is told of them.
    pub(super) fn tools(&self) -> Vec<ToolSpec> {
        let tool = |tool: &ToolText| ToolSpec {
            name: tool.name.clone(),
            description: tool.description.clone(),
            parameters: serde_json::from_str(&tool.parameters).unwrap_or_default(),
        };
        self.tools.iter().map(tool).collect()
    }
}

/// A line from the runtime that the daemon has to do something about.
#[derive(Debug)]
pub(super) enum Said {
    Ready(Box<Profile>, Vec<TurnId>),
    NotReady(String),
    Asked {
        id: Value,
        ask: Ask,
    },
    /// It will not run a turn.
    Refused {
        turn: TurnId,
        why: String,
    },
    /// A request that makes no sense; it is answered so.
    Nonsense {
        id: Value,
        why: String,
    },
    /// An acknowledgement, or noise.
    Nothing,
}

#[derive(Deserialize)]
struct Line {
    #[serde(default)]
    id: Value,
    method: Option<String>,
    #[serde(default)]
    params: Value,
    result: Option<Value>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct ReadyResult {
    context: ReadyContext,
    #[serde(default)]
    tools: Vec<ReadyTool>,
    #[serde(default)]
    params: ReadyParams,
    #[serde(default)]
    turns: Vec<ReadyTurn>,
}

#[derive(Deserialize)]
struct ReadyContext {
    id: String,
    system: String,
}

#[derive(Deserialize)]
struct ReadyTool {
    name: String,
    #[serde(default)]
    description: String,
    parameters: Value,
}

#[derive(Deserialize, Default)]
struct ReadyParams {
    max_tokens: Option<u32>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<u32>,
    presence_penalty: Option<f64>,
    frequency_penalty: Option<f64>,
}

#[derive(Deserialize)]
struct ReadyTurn {
    turn: String,
}

#[derive(Deserialize)]
struct ModelAsk {
    turn: String,
    step: u32,
    context: String,
    from_turn: u32,
}

#[derive(Deserialize)]
struct ExecAsk {
    turn: String,
    step: u32,
    call: String,
    bin: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    stdin: Option<String>,
    #[serde(default)]
    timeout_ms: u64,
}

/// What can be asked of jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JobMethod {
    Submit,
    List,
    Status,
    Wait,
    Watch,
    Cancel,
}

impl JobMethod {
    const ALL: [JobMethod; 6] = [
        JobMethod::Submit,
        JobMethod::List,
        JobMethod::Status,
        JobMethod::Wait,
        JobMethod::Watch,
        JobMethod::Cancel,
    ];

    fn word(self) -> &'static str {
        match self {
            JobMethod::Submit => "job/submit",
            JobMethod::List => "job/list",
            JobMethod::Status => "job/status",
            JobMethod::Wait => "job/wait",
            JobMethod::Watch => "job/watch",
            JobMethod::Cancel => "job/cancel",
        }
    }

    fn from_word(word: &str) -> Option<JobMethod> {
        JobMethod::ALL.into_iter().find(|method| method.word() == word)
    }
}

/// What is asked of jobs. Which fields there are depends on what it is.
#[derive(Deserialize)]
struct JobAsk {
    turn: String,
    step: u32,
    call: String,
    #[serde(flatten)]
    wish: Value,
}

#[derive(Deserialize)]
struct SubmitWish {
    bin: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    stdin: Option<String>,
    #[serde(default)]
    timeout_ms: u64,
    #[serde(default)]
    priority: i32,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct ListWish {
    status: Option<String>,
    limit: Option<u32>,
}

#[derive(Deserialize)]
struct OneWish {
    job: String,
}

#[derive(Deserialize)]
struct CompactAsk {
    turn: String,
    from_turn: u32,
    strategy: String,
}

#[derive(Deserialize)]
struct AnswerAsk {
    turn: String,
    step: u32,
    call: String,
    text: String,
    #[serde(default)]
    error: bool,
}

#[derive(Deserialize)]
struct FinishAsk {
    turn: String,
    code: String,
    message: String,
}

/// The probe: everything a runtime needs, and the question whether it is ready.
pub(super) fn initialize(
    id: &str,
    epoch: u64,
    layout: &Layout,
    row: &AgentRow,
    image: &ImageRecord,
) -> Vec<u8> {
    let context: Vec<Value> = super::root::contexts(layout, row, image)
        .into_iter()
        .map(|section| match &section.description {
            Some(description) => {
                json!({"name": section.name, "file": section.file(), "description": description})
            }
            None => json!({"name": section.name, "file": section.file()}),
        })
        .collect();
    let tools: Vec<Value> = row
        .spec
        .tools
        .iter()
        .map(|tool| match &tool.usage {
            Some(usage) => json!({"name": tool.name, "description": tool.description, "usage": usage}),
            None => json!({"name": tool.name, "description": tool.description}),
        })
        .collect();
    line(&json!({
        "jsonrpc": "2.0",
        "id": id,
        "method": "initialize",
        "params": {
            "protocol": 1,
            "epoch": epoch,
            "agent": {"id": row.id.as_str(), "name": row.name, "model": row.spec.model},
            "root": layout.root(),
            "configs": super::root::configs(row, image),
            "context": context,
            "tools": tools,
        },
    }))
}

pub(super) fn run_turn(
    turn: &TurnId,
    session: &str,
    number: u32,
    step: u32,
    calls: &[CallRecord],
    epoch: &EpochWeight,
) -> Vec<u8> {
    let calls: Vec<Value> = calls
        .iter()
        .map(|call| json!({"id": call.id, "name": call.name, "arguments": call.arguments}))
        .collect();
    line(&json!({
        "jsonrpc": "2.0",
        "id": format!("run:{turn}:{step}"),
        "method": "turn/run",
        "params": {
            "turn": turn.as_str(),
            "session": session,
            "number": number,
            "step": step,
            "calls": calls,
            "epoch": {
                "number": epoch.number,
                "from_turn": epoch.from_turn,
                "messages": epoch.messages,
                "bytes": epoch.bytes,
                "turns": epoch.turns,
            },
        },
    }))
}

pub(super) fn drop_turn(turn: &TurnId) -> Vec<u8> {
    line(&json!({
        "jsonrpc": "2.0",
        "id": format!("drop:{turn}"),
        "method": "turn/interrupt",
        "params": {"turn": turn.as_str()},
    }))
}

/// Are you there? Any line is an answer.
pub(super) fn ping() -> Vec<u8> {
    line(&json!({"jsonrpc": "2.0", "id": "ping", "method": "ping", "params": {}}))
}

pub(super) fn answer(id: &Value, answer: &Result<Value, FailureRecord>) -> Vec<u8> {
    match answer {
        Ok(result) => line(&json!({"jsonrpc": "2.0", "id": id, "result": result})),
        Err(failure) => line(&json!({
            "jsonrpc": "2.0",
            "id": id,
            "error": {"code": -32000, "message": failure.message, "data": {"code": failure.code}},
        })),
    }
}

fn line(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

/// Reads one line. `probe` is the id of the `initialize` that is waited for.
pub(super) fn read(bytes: &[u8], probe: Option<&str>) -> Said {
    let Ok(line) = serde_json::from_slice::<Line>(bytes) else { return Said::Nothing };
    let Some(method) = line.method else {
        if probe.is_none() || line.id.as_str() != probe {
            return refused(&line.id, line.error);
        }
        return match (line.result, line.error) {
            (Some(result), _) => ready(result),
            (None, error) => Said::NotReady(error.unwrap_or_default().to_string()),
        };
    };
    // Until it has answered the probe, what it says is for a daemon that is gone; it says it again after.
    if probe.is_some() {
        return Said::Nothing;
    }
    match ask(&method, line.params) {
        Ok(ask) => Said::Asked { id: line.id, ask },
        Err(why) => Said::Nonsense { id: line.id, why },
    }
}

/// An error in answer to `turn/run` ends that turn; other answers need nothing.
fn refused(id: &Value, error: Option<Value>) -> Said {
    let turn = id.as_str().and_then(|id| id.strip_prefix("run:")?.split(':').next()?.parse().ok());
    match (turn, error) {
        (Some(turn), Some(error)) => {
            let why = error.get("message").and_then(Value::as_str).unwrap_or("the runtime refused the turn");
            Said::Refused { turn, why: why.to_owned() }
        }
        (Some(_) | None, _) => Said::Nothing,
    }
}

fn ready(result: Value) -> Said {
    match serde_json::from_value::<ReadyResult>(result) {
        Ok(ready) => {
            let running = ready.turns.iter().filter_map(|turn| turn.turn.parse().ok()).collect();
            let tools = ready.tools.into_iter();
            let profile = Profile {
                context: ready.context.id,
                system: ready.context.system,
                tools: tools
                    .map(|tool| ToolText {
                        name: tool.name,
                        description: tool.description,
                        parameters: tool.parameters.to_string().into_boxed_str(),
                    })
                    .collect(),
                params: CallParams {
                    max_tokens: ready.params.max_tokens,
                    temperature: ready.params.temperature,
                    top_p: ready.params.top_p,
                    top_k: ready.params.top_k,
                    presence_penalty: ready.params.presence_penalty,
                    frequency_penalty: ready.params.frequency_penalty,
                    ..CallParams::default()
                },
            };
            Said::Ready(Box::new(profile), running)
        }
        Err(error) => Said::NotReady(format!("its answer to initialize does not fit the protocol: {error}")),
    }
}

fn ask(method: &str, params: Value) -> Result<Ask, String> {
    let turn = |turn: String| turn.parse::<TurnId>().map_err(|error| error.to_string());
    let bad = |error: serde_json::Error| error.to_string();
    match method {
        "model/stream" => {
            let ask: ModelAsk = serde_json::from_value(params).map_err(bad)?;
            Ok(Ask::Model {
                turn: turn(ask.turn)?,
                step: ask.step,
                context: ask.context,
                from_turn: ask.from_turn,
            })
        }
        "exec/run" => {
            let ask: ExecAsk = serde_json::from_value(params).map_err(bad)?;
            Ok(Ask::Exec {
                turn: turn(ask.turn)?,
                step: ask.step,
                call: ask.call,
                bin: ask.bin,
                args: ask.args,
                stdin: ask.stdin.unwrap_or_default().into_bytes(),
                timeout_ms: ask.timeout_ms,
            })
        }
        "context/compact" => {
            let ask: CompactAsk = serde_json::from_value(params).map_err(bad)?;
            let strategy = Strategy::from_word(&ask.strategy);
            let strategy = strategy.ok_or_else(|| format!("there is no strategy `{}`", ask.strategy))?;
            Ok(Ask::Compact { turn: turn(ask.turn)?, from_turn: ask.from_turn, strategy })
        }
        "tool/answer" => {
            let ask: AnswerAsk = serde_json::from_value(params).map_err(bad)?;
            Ok(Ask::Answer {
                turn: turn(ask.turn)?,
                step: ask.step,
                call: ask.call,
                text: ask.text,
                error: ask.error,
            })
        }
        "turn/finish" => {
            let ask: FinishAsk = serde_json::from_value(params).map_err(bad)?;
            Ok(Ask::Finish { turn: turn(ask.turn)?, code: ask.code, message: ask.message })
        }
        other => {
            let method = JobMethod::from_word(other);
            let method = method.ok_or_else(|| format!("there is no method `{other}`"))?;
            let ask: JobAsk = serde_json::from_value(params).map_err(bad)?;
            let (turn, step, call) = (turn(ask.turn)?, ask.step, ask.call);
            Ok(match job_wish(method, ask.wish).map_err(bad)? {
                Ok(wish) => Ask::Job { turn, step, call, wish },
                // A model wrote it, and can do better.
                Err(text) => Ask::Answer { turn, step, call, text, error: true },
            })
        }
    }
}

/// What a model wants of jobs, or what it is told instead.
fn job_wish(method: JobMethod, wish: Value) -> serde_json::Result<Result<JobWish, String>> {
    let one = |wish: Value, ask: fn(JobId) -> JobWish| {
        let OneWish { job } = serde_json::from_value(wish)?;
        Ok(job.parse().map(ask).map_err(|_| {
            format!("async job not found: {job}; ids are what job_submit returned, and job_list shows them")
        }))
    };
    match method {
        JobMethod::Submit => Ok(Ok(JobWish::Submit(job_work(serde_json::from_value(wish)?)))),
        JobMethod::List => Ok(job_list(serde_json::from_value(wish)?)),
        JobMethod::Status => one(wish, |job| JobWish::Status { job }),
        JobMethod::Wait => one(wish, |job| JobWish::Wait { job }),
        JobMethod::Watch => one(wish, |job| JobWish::Watch { job }),
        JobMethod::Cancel => one(wish, |job| JobWish::Cancel { job }),
    }
}

fn job_work(wish: SubmitWish) -> JobWork {
    JobWork {
        bin: wish.bin,
        args: wish.args,
        stdin: wish.stdin.unwrap_or_default().into_bytes(),
        timeout_ms: wish.timeout_ms,
        priority: wish.priority,
        output_bytes: 0,
        labels: wish.labels,
    }
}

fn job_list(wish: ListWish) -> Result<JobWish, String> {
    let limit = wish.limit.unwrap_or(JOBS_LISTED).clamp(1, JOBS_LISTED_MAX);
    let Some(word) = wish.status else { return Ok(JobWish::List { status: None, limit }) };
    match JobState::from_word(&word) {
        Some(state) => Ok(JobWish::List { status: Some(state), limit }),
        None => {
            let words: Vec<&str> = JobState::ALL.into_iter().map(JobState::word).collect();
            Err(format!("there is no status `{word}`; `status` is one of: {}", words.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests;
