//! The runtime protocol, as the daemon speaks it: what it tells a runtime, and what it makes of a runtime's lines.

use lodge_core::epoch::{EpochWeight, Strategy};
use lodge_core::id::BadId;
use lodge_core::job::JobState;
use lodge_core::record::{CallRecord, FailureRecord, ImageRecord};
use lodge_core::{JobId, TurnId};
use lodge_model::{CallParams, ToolSpec};
use lodge_runtime_messages::{
    AgentIdentity, AnswerCall, CompactReply, CompactStrategy, ContextFile, ConversationEpoch, DaemonMethod,
    EmptyReply, ErrorReply, ExecReply, ExecRunRequest, InitializeReply, InitializeRequest, JobSubmitRequest,
    ModelStreamReply, OneJobRequest, PROTOCOL, PingRequest, REFUSED, RuntimeMessage, RuntimeRequest,
    ToolDeclaration, TurnInterruptRequest, TurnRunRequest, write_daemon_request, write_error, write_result,
};
use serde_json::Value;

use super::layout::Layout;
use lodge_engine::jobs::{JobWish, JobWork};
use lodge_engine::{Ask, AskId, CallOutcome, RuntimeAnswer, SandboxPlan};

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
        id: AskId,
        ask: Ask,
    },
    /// It will not run a turn.
    Refused {
        turn: TurnId,
        why: String,
    },
    /// A request that makes no sense; it is answered so.
    Nonsense {
        id: AskId,
        why: String,
    },
    /// An acknowledgement, or noise.
    Nothing,
}

/// The probe: everything a runtime needs, and the question whether it is ready.
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
    let tools = plan.spec.tools.iter().map(|tool| ToolDeclaration {
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
            model: plan.spec.model.clone(),
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

/// Are you there? Any line is an answer.
pub(super) fn ping() -> Vec<u8> {
    request("ping", &PingRequest {})
}

fn request(id: &str, params: &impl DaemonMethod) -> Vec<u8> {
    let mut line = Vec::new();
    write_daemon_request(&mut line, id, params);
    line
}

pub(super) fn answer(id: &AskId, answer: Result<RuntimeAnswer, FailureRecord>) -> Vec<u8> {
    let (mut line, AskId(id)) = (Vec::new(), id);
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
        Err(failure) => {
            let error = ErrorReply::new(REFUSED, failure.message, &failure.code);
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

/// Reads one line. `probe` is the id of the `initialize` that is waited for.
pub(super) fn read(bytes: &[u8], probe: Option<&str>) -> Said {
    let Ok(line) = serde_json::from_slice::<RuntimeMessage>(bytes) else { return Said::Nothing };
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
        Ok(ask) => Said::Asked { id: AskId(line.id), ask },
        Err(why) => Said::Nonsense { id: AskId(line.id), why },
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
            Said::Ready(Box::new(profile), running)
        }
        Err(error) => Said::NotReady(format!("its answer to initialize does not fit the protocol: {error}")),
    }
}

fn ask(method: &str, params: Value) -> Result<Ask, String> {
    let request = RuntimeRequest::parse(method, params).map_err(|error| error.to_string())?;
    let turn: TurnId = request.turn().parse().map_err(|error: BadId| error.to_string())?;
    Ok(match request {
        RuntimeRequest::ModelStream(request) => {
            Ask::Model { turn, step: request.step, context: request.context, from_turn: request.from_turn }
        }
        RuntimeRequest::ExecRun(request) => exec_ask(turn, request),
        RuntimeRequest::ContextCompact(request) => {
            Ask::Compact { turn, from_turn: request.from_turn, strategy: strategy(request.strategy) }
        }
        RuntimeRequest::ToolAnswer(request) => Ask::Answer {
            turn,
            step: request.step,
            call: request.call,
            text: request.text,
            error: request.error,
        },
        RuntimeRequest::TurnFinish(request) => {
            Ask::Finish { turn, code: request.code, message: request.message }
        }
        RuntimeRequest::JobSubmit(request) => {
            let (step, call) = (request.step, request.call.clone());
            Ask::Job { turn, step, call, wish: JobWish::Submit(job_work(request)) }
        }
        RuntimeRequest::JobList(request) => {
            job_ask(turn, request.step, request.call, job_list(request.status, request.limit))
        }
        RuntimeRequest::JobStatus(request) => one_job(turn, request, |job| JobWish::Status { job }),
        RuntimeRequest::JobWait(request) => one_job(turn, request, |job| JobWish::Wait { job }),
        RuntimeRequest::JobWatch(request) => one_job(turn, request, |job| JobWish::Watch { job }),
        RuntimeRequest::JobCancel(request) => one_job(turn, request, |job| JobWish::Cancel { job }),
    })
}

fn exec_ask(turn: TurnId, request: ExecRunRequest) -> Ask {
    Ask::Exec {
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

fn one_job(turn: TurnId, request: OneJobRequest, wish: fn(JobId) -> JobWish) -> Ask {
    let job = request.job;
    let wish = job.parse().map(wish).map_err(|_| {
        format!("async job not found: {job}; ids are what job_submit returned, and job_list shows them")
    });
    job_ask(turn, request.step, request.call, wish)
}

/// What a model wants of jobs. If the model wrote it wrongly, it is told so and can try again.
fn job_ask(turn: TurnId, step: u32, call: String, wish: Result<JobWish, String>) -> Ask {
    match wish {
        Ok(wish) => Ask::Job { turn, step, call, wish },
        Err(text) => Ask::Answer { turn, step, call, text, error: true },
    }
}

fn job_work(request: JobSubmitRequest) -> JobWork {
    JobWork {
        bin: request.bin,
        args: request.args,
        stdin: request.stdin.into_bytes(),
        timeout_ms: request.timeout_ms,
        priority: request.priority,
        output_bytes: 0,
        labels: request.labels,
    }
}

fn job_list(status: Option<String>, limit: Option<u32>) -> Result<JobWish, String> {
    let limit = limit.unwrap_or(JOBS_LISTED).clamp(1, JOBS_LISTED_MAX);
    let Some(word) = status else { return Ok(JobWish::List { status: None, limit }) };
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
