//! The daemon's side of the runtime protocol: renders lines for a runtime, and parses a runtime's lines.

use lodge_core::epoch::{EpochWeight, Strategy};
use lodge_core::id::BadId;
use lodge_core::job::JobState;
use lodge_core::record::{CallRecord, ImageRecord};
use lodge_core::{JobId, TurnId};
use lodge_model::{CallParams, ToolSpec};
use lodge_runtime_messages::{
    AgentIdentity, AnswerCall, CONFIG_UNUSABLE, CompactReply, CompactStrategy, ContextFile,
    ConversationEpoch, DaemonMethod, EmptyReply, ErrorReply, ExecReply, ExecRunRequest, InitializeReply,
    InitializeRequest, JobSubmitRequest, ModelStreamReply, OneJobRequest, PROTOCOL, PingRequest, REFUSED,
    RuntimeMessage, RuntimeRequest, ToolDeclaration, TurnInterruptRequest, TurnRunRequest,
    write_daemon_request, write_error, write_result,
};
use serde_json::Value;

use super::layout::Layout;
use lodge_engine::jobs::{JobSpec, JobToolRequest};
use lodge_engine::{CallOutcome, RuntimeAnswer, RuntimeCall, RuntimeCallId, RuntimeCallRefusal, SandboxPlan};

/// Jobs in one listing for a model: the default and the maximum.
const JOBS_LISTED: u32 = 20;
const JOBS_LISTED_MAX: u32 = 100;

/// The description that a runtime gives of itself when it is ready.
#[derive(Debug)]
pub struct Profile {
    pub context: String,
    pub system: String,
    tools: Vec<ToolText>,
    pub params: CallParams,
}

/// A tool with its schema as text. A parsed schema takes many times the memory, and the tools of all agents are in memory.
#[derive(Debug)]
struct ToolText {
    name: String,
    description: String,
    parameters: Box<str>,
}

impl Profile {
    /// The tools, as they are sent to a model.
    pub(super) fn tools(&self) -> Vec<ToolSpec> {
        let tool = |tool: &ToolText| ToolSpec {
            name: tool.name.clone(),
            description: tool.description.clone(),
            parameters: serde_json::from_str(&tool.parameters).unwrap_or_default(),
        };
        self.tools.iter().map(tool).collect()
    }
}

/// A parsed line of the runtime.
#[derive(Debug)]
pub(super) enum RuntimeLine {
    Ready(Box<Profile>, Vec<TurnId>),
    NotReady(String),
    /// The values of its CONFIG cannot be used.
    Unconfigured(String),
    Request {
        id: RuntimeCallId,
        ask: RuntimeCall,
    },
    /// The runtime refuses to run a turn.
    TurnRefused {
        turn: TurnId,
        why: String,
    },
    /// A request with an unknown method or invalid params; it is refused.
    BadRequest {
        id: RuntimeCallId,
        why: String,
    },
    /// An acknowledgement, or a line without meaning.
    Nothing,
}

/// The probe: configures a runtime, and asks whether it is ready.
pub(super) fn initialize(
    id: &str,
    epoch: u64,
    layout: &Layout,
    plan: &SandboxPlan,
    image: &ImageRecord,
) -> Vec<u8> {
    let context = super::root::contexts(layout, plan, image).into_iter().map(|section| ContextFile {
        file: section.file(),
        name: section.name,
        description: section.description,
    });
    let tools = plan.settings.tools.iter().map(|tool| ToolDeclaration {
        name: tool.name.clone(),
        description: tool.description.clone(),
        usage: tool.usage.clone(),
    });
    let params = InitializeRequest {
        protocol: PROTOCOL,
        epoch,
        agent: AgentIdentity {
            id: plan.agent.to_string(),
            name: plan.name.clone(),
            model: plan.settings.model.clone(),
        },
        root: Some(layout.root().to_owned()),
        configs: super::root::configs(plan, image),
        context: context.collect(),
        tools: tools.collect(),
    };
    request(id, &params)
}

pub(super) fn run_turn(
    turn: &TurnId,
    session: &str,
    number: u32,
    step: u32,
    calls: Vec<CallRecord>,
    epoch: EpochWeight,
) -> Vec<u8> {
    let params = TurnRunRequest {
        turn: turn.to_string(),
        session: session.to_owned(),
        number,
        step,
        calls: calls.into_iter().map(answer_call).collect(),
        epoch: ConversationEpoch {
            number: epoch.number,
            from_turn: epoch.from_turn,
            messages: epoch.messages,
            bytes: epoch.bytes,
            turns: epoch.turns,
        },
    };
    request(&format!("run:{turn}:{step}"), &params)
}

pub(super) fn drop_turn(turn: &TurnId) -> Vec<u8> {
    request(&format!("drop:{turn}"), &TurnInterruptRequest { turn: turn.to_string() })
}

/// Asks for a sign of life. Any line is an answer.
pub(super) fn ping() -> Vec<u8> {
    request("ping", &PingRequest {})
}

fn request(id: &str, params: &impl DaemonMethod) -> Vec<u8> {
    let mut line = Vec::new();
    write_daemon_request(&mut line, id, params);
    line
}

pub(super) fn answer(id: &RuntimeCallId, answer: Result<RuntimeAnswer, RuntimeCallRefusal>) -> Vec<u8> {
    let (mut line, RuntimeCallId(id)) = (Vec::new(), id);
    match answer {
        Ok(RuntimeAnswer::Done) => write_result(&mut line, id, &EmptyReply {}),
        Ok(RuntimeAnswer::Model { finished, calls }) => {
            let calls = calls.into_iter().map(answer_call).collect();
            write_result(&mut line, id, &ModelStreamReply { finished, calls });
        }
        Ok(RuntimeAnswer::Call(outcome)) => write_result(&mut line, id, &exec_reply(&outcome)),
        Ok(RuntimeAnswer::Compacted { from_turn }) => {
            write_result(&mut line, id, &CompactReply { from_turn });
        }
        Err(refusal) => {
            let error = ErrorReply::new(REFUSED, refusal.to_string(), refusal.code());
            write_error(&mut line, id, &error);
        }
    }
    line
}

fn answer_call(call: CallRecord) -> AnswerCall {
    AnswerCall { id: call.id, name: call.name, arguments: Value::String(call.arguments) }
}

fn exec_reply(outcome: &CallOutcome) -> ExecReply {
    ExecReply {
        status: Some(outcome.state.word().to_owned()),
        exit_code: outcome.exit_code,
        signal: outcome.signal,
        cause: outcome.cause.map(|cause| cause.word().to_owned()),
        digest: outcome.digest.map(|digest| digest.iter().map(|byte| format!("{byte:02x}")).collect()),
        stdout_bytes: outcome.output.map(|output| output.stdout),
        stderr_bytes: outcome.output.map(|output| output.stderr),
    }
}

/// Parses one line. `probe` is the id of the pending `initialize`.
pub(super) fn parse_line(bytes: &[u8], probe: Option<&str>) -> RuntimeLine {
    let Ok(line) = serde_json::from_slice::<RuntimeMessage>(bytes) else { return RuntimeLine::Nothing };
    let Some(method) = line.method else {
        if probe.is_none() || line.id.as_str() != probe {
            return parse_refusal(&line.id, line.error);
        }
        return match (line.result, line.error) {
            (Some(result), _) => parse_ready(result),
            (None, error) => parse_not_ready(&error.unwrap_or_default()),
        };
    };
    // Lines before the answer to the probe are for the previous daemon. The runtime repeats its requests after the probe.
    if probe.is_some() {
        return RuntimeLine::Nothing;
    }
    match parse_call(&method, line.params) {
        Ok(ask) => RuntimeLine::Request { id: RuntimeCallId(line.id), ask },
        Err(why) => RuntimeLine::BadRequest { id: RuntimeCallId(line.id), why },
    }
}

/// An error in answer to `initialize`.
fn parse_not_ready(error: &Value) -> RuntimeLine {
    let message = error.get("message").and_then(Value::as_str);
    match (error.pointer("/data/code").and_then(Value::as_str), message) {
        (Some(CONFIG_UNUSABLE), Some(message)) => RuntimeLine::Unconfigured(message.to_owned()),
        (_, _) => RuntimeLine::NotReady(error.to_string()),
    }
}

/// An error in answer to `turn/run` ends that turn. Other answers need no action.
fn parse_refusal(id: &Value, error: Option<Value>) -> RuntimeLine {
    let turn = id.as_str().and_then(|id| id.strip_prefix("run:")?.split(':').next()?.parse().ok());
    match (turn, error) {
        (Some(turn), Some(error)) => {
            let why = error.get("message").and_then(Value::as_str).unwrap_or("the runtime refused the turn");
            RuntimeLine::TurnRefused { turn, why: why.to_owned() }
        }
        (Some(_) | None, _) => RuntimeLine::Nothing,
    }
}

fn parse_ready(result: Value) -> RuntimeLine {
    match serde_json::from_value::<InitializeReply>(result) {
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
            RuntimeLine::Ready(Box::new(profile), running)
        }
        Err(error) => {
            RuntimeLine::NotReady(format!("its answer to initialize does not fit the protocol: {error}"))
        }
    }
}

fn parse_call(method: &str, params: Value) -> Result<RuntimeCall, String> {
    let request = RuntimeRequest::parse(method, params).map_err(|error| error.to_string())?;
    let turn: TurnId = request.turn().parse().map_err(|error: BadId| error.to_string())?;
    Ok(match request {
        RuntimeRequest::ModelStream(request) => RuntimeCall::Model {
            turn,
            step: request.step,
            context: request.context,
            from_turn: request.from_turn,
        },
        RuntimeRequest::ExecRun(request) => exec_call(turn, request),
        RuntimeRequest::ContextCompact(request) => {
            RuntimeCall::Compact { turn, from_turn: request.from_turn, strategy: strategy(request.strategy) }
        }
        RuntimeRequest::ToolAnswer(request) => RuntimeCall::Answer {
            turn,
            step: request.step,
            call: request.call,
            text: request.text,
            error: request.error,
        },
        RuntimeRequest::TurnFinish(request) => {
            RuntimeCall::Finish { turn, code: request.code, message: request.message }
        }
        RuntimeRequest::JobSubmit(request) => {
            let (step, call) = (request.step, request.call.clone());
            RuntimeCall::Job { turn, step, call, wish: JobToolRequest::Submit(job_spec(request)) }
        }
        RuntimeRequest::JobList(request) => {
            job_call(turn, request.step, request.call, job_list(request.status, request.limit))
        }
        RuntimeRequest::JobStatus(request) => {
            one_job_call(turn, request, |job| JobToolRequest::Status { job })
        }
        RuntimeRequest::JobWait(request) => one_job_call(turn, request, |job| JobToolRequest::Wait { job }),
        RuntimeRequest::JobWatch(request) => one_job_call(turn, request, |job| JobToolRequest::Watch { job }),
        RuntimeRequest::JobCancel(request) => {
            one_job_call(turn, request, |job| JobToolRequest::Cancel { job })
        }
    })
}

fn exec_call(turn: TurnId, request: ExecRunRequest) -> RuntimeCall {
    RuntimeCall::Exec {
        turn,
        step: request.step,
        call: request.call,
        bin: request.bin,
        args: request.args,
        stdin: request.stdin.into_bytes(),
        timeout_ms: request.timeout_ms,
    }
}

fn strategy(strategy: CompactStrategy) -> Strategy {
    match strategy {
        CompactStrategy::Sliding => Strategy::Sliding,
        CompactStrategy::Summarize => Strategy::Summarize,
        CompactStrategy::Handoff => Strategy::Handoff,
    }
}

fn one_job_call(turn: TurnId, request: OneJobRequest, wish: fn(JobId) -> JobToolRequest) -> RuntimeCall {
    let job = request.job;
    let wish = job.parse().map(wish).map_err(|_| {
        format!("async job not found: {job}; ids are what job_submit returned, and job_list shows them")
    });
    job_call(turn, request.step, request.call, wish)
}

/// A call of a job tool. If the model's arguments are invalid, the result says so and the model can try again.
fn job_call(turn: TurnId, step: u32, call: String, wish: Result<JobToolRequest, String>) -> RuntimeCall {
    match wish {
        Ok(wish) => RuntimeCall::Job { turn, step, call, wish },
        Err(text) => RuntimeCall::Answer { turn, step, call, text, error: true },
    }
}

fn job_spec(request: JobSubmitRequest) -> JobSpec {
    JobSpec {
        bin: request.bin,
        args: request.args,
        stdin: request.stdin.into_bytes(),
        timeout_ms: request.timeout_ms,
        priority: request.priority,
        output_bytes: 0,
        labels: request.labels,
    }
}

fn job_list(status: Option<String>, limit: Option<u32>) -> Result<JobToolRequest, String> {
    let limit = limit.unwrap_or(JOBS_LISTED).clamp(1, JOBS_LISTED_MAX);
    let Some(word) = status else { return Ok(JobToolRequest::List { status: None, limit }) };
    match JobState::from_word(&word) {
        Some(state) => Ok(JobToolRequest::List { status: Some(state), limit }),
        None => {
            let words: Vec<&str> = JobState::ALL.into_iter().map(JobState::word).collect();
            Err(format!("there is no status `{word}`; `status` is one of: {}", words.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests;
