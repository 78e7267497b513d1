//! The loop: a line in, what follows from it out.
//!
//! Owns: the two pipes, and which method leads where. Never: a decision about a turn (see `turns`).

use std::fs::File;
use std::io;
use std::os::fd::FromRawFd;
use std::path::PathBuf;

use lodge_runtime_messages::{
    DaemonMethod, EmptyReply, InitializeReply, InitializeRequest, LINE_BYTES_MAX, MessageHead, PROTOCOL,
    PingRequest, RequestBody, RunningTurn, RuntimeName, TurnInterruptRequest, TurnRunRequest, WindowSize,
    write_error, write_result, write_runtime_request,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::RuntimeSettings;
use crate::lines::{self, InputLine, InputLines, ReadState};
use crate::log::RuntimeLogEvent;
use crate::refusal::RuntimeRefusal;
use crate::turns::{AnswerEffect, TURNS_MAX, TurnDefaults, TurnStart, Turns};
use crate::{RUNTIME_NAME, RUNTIME_VERSION, jobs, prompt, tool};

/// Serves until stdin is closed.
pub(crate) fn serve(root: PathBuf) -> io::Result<()> {
    // SAFETY: from here on nothing else in this process uses descriptors 0 and 1.
    let (stdin, mut stdout) = unsafe { (File::from_raw_fd(0), File::from_raw_fd(1)) };
    let mut lines = InputLines::new(stdin);
    let mut runtime = RuntimeServer { root, epoch: 0, turns: None };
    while lines.fill(lines::wait_readable)? == ReadState::Some {
        while let Some(line) = lines.next_line() {
            let mut out = Vec::new();
            runtime.take(line, &mut out);
            lines::write_whole(&mut stdout, &out)?;
        }
        if runtime.turns_running() == 0 {
            give_memory_back();
        }
    }
    RuntimeLogEvent::InputClosed { turns: runtime.turns_running() }.emit();
    Ok(())
}

/// Hundreds of runtimes are idle at once, so what a turn used goes back to the system.
fn give_memory_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: no other thread exists, and `malloc_trim` only releases memory that is free.
    unsafe {
        libc::malloc_trim(0)
    };
}

#[derive(Debug)]
struct RuntimeServer {
    root: PathBuf,
    epoch: u64,
    /// `None` until the first `initialize`.
    turns: Option<Turns>,
}

impl RuntimeServer {
    fn turns_running(&self) -> usize {
        self.turns.as_ref().map_or(0, Turns::count)
    }

    /// Everything that one line leads to: its reply first, then new requests.
    fn take(&mut self, line: InputLine<'_>, out: &mut Vec<u8>) {
        match line {
            InputLine::Whole(line) => {
                let line = line.trim_ascii();
                // An empty line is how a daemon ends what its predecessor left unfinished.
                if !line.is_empty() {
                    self.take_message(line, out);
                }
            }
            InputLine::TooLong => refuse_line(&RuntimeRefusal::TooLong, out),
        }
        if let Some(turns) = &mut self.turns {
            turns.send(|id, request| {
                write_runtime_request(out, id, request);
                out.push(b'\n');
            });
        }
    }

    fn take_message(&mut self, line: &[u8], out: &mut Vec<u8>) {
        // A list would pass for an object whose fields come in order, so its first byte decides.
        let head = match serde_json::from_slice::<MessageHead>(line) {
            Ok(head) if line.starts_with(b"{") => head,
            Ok(_) | Err(_) => return refuse_line(&RuntimeRefusal::Parse, out),
        };
        match head {
            MessageHead { method: Some(method), id } => {
                let before = out.len();
                let taken = self.take_request(&method, line, id.as_ref(), out);
                // Without an id it is a notification, which has no reply of either kind.
                if let (Err(refusal), Some(id)) = (taken, &id) {
                    out.truncate(before);
                    push_refusal(out, id, &refusal);
                }
            }
            MessageHead { method: None, id: Some(id) } => self.take_answer(&id, line),
            // Also how the daemon reports a line of ours that it could not read. A reply would loop endlessly.
            MessageHead { method: None, id: None } if is_error(line) => {
                RuntimeLogEvent::AnswerIgnored { id: "null" }.emit()
            }
            MessageHead { method: None, id: None } => refuse_line(&RuntimeRefusal::InvalidRequest, out),
        }
    }

    fn take_request(
        &mut self,
        method: &str,
        line: &[u8],
        id: Option<&Value>,
        out: &mut Vec<u8>,
    ) -> Result<(), RuntimeRefusal> {
        match method {
            InitializeRequest::METHOD => {
                return self.initialize(params(line)?, id, out).inspect_err(|refusal| {
                    RuntimeLogEvent::InitializeRefused { code: refusal.code(), cause: refusal }.emit();
                });
            }
            TurnRunRequest::METHOD => self.turn_run(params(line)?)?,
            TurnInterruptRequest::METHOD => self.turn_interrupt(&params(line)?)?,
            PingRequest::METHOD => {}
            _ => return Err(RuntimeRefusal::UnknownMethod { method: method.chars().take(64).collect() }),
        }
        if let Some(id) = id {
            push_reply(out, id, &EmptyReply {});
        }
        Ok(())
    }

    /// Settles prompt, tools and tunables. A refused `initialize` changes nothing.
    fn initialize(
        &mut self,
        params: InitializeRequest,
        id: Option<&Value>,
        out: &mut Vec<u8>,
    ) -> Result<(), RuntimeRefusal> {
        if params.protocol < PROTOCOL {
            return Err(RuntimeRefusal::Protocol { asked: params.protocol });
        }
        if params.epoch < self.epoch {
            return Err(RuntimeRefusal::StaleEpoch { epoch: params.epoch, known: self.epoch });
        }
        let root = params.root.as_ref().unwrap_or(&self.root);
        let prompt = prompt::assemble(root, &params.context).map_err(RuntimeRefusal::Context)?;
        let settings = RuntimeSettings::from_configs(&params.configs).map_err(RuntimeRefusal::Configs)?;
        let programs: Vec<String> = params.tools.iter().map(|tool| tool.name.clone()).collect();
        let offers = params.tools.iter().map(|tool| tool::offer(tool, tool::parameters()));
        let running = self.turns.iter().flat_map(Turns::ids);
        let reply = InitializeReply {
            protocol: PROTOCOL,
            runtime: RuntimeName { name: RUNTIME_NAME.to_owned(), version: RUNTIME_VERSION.to_owned() },
            context: prompt,
            tools: offers.chain(jobs::schemas(&programs).into_iter().map(jobs::offer)).collect(),
            params: settings.params,
            window: WindowSize { max_messages: settings.memory.messages_max },
            turns: running.map(|turn| RunningTurn { turn: turn.to_owned() }).collect(),
        };
        let before = out.len();
        if let Some(id) = id {
            push_reply(out, id, &reply);
        }
        if out.len() - before > LINE_BYTES_MAX {
            return Err(RuntimeRefusal::ReplyTooLong);
        }
        let plan = TurnDefaults {
            context: reply.context.id,
            iterations_max: settings.iterations_max,
            memory: settings.memory,
            tool_timeout_ms: settings.tool_timeout_ms,
            tools: programs,
        };
        self.settle(params.epoch, &params.agent.id, plan);
        Ok(())
    }

    fn settle(&mut self, epoch: u64, agent: &str, plan: TurnDefaults) {
        let (context, tools, turns) = (plan.context.clone(), plan.tools.len(), self.turns_running());
        let resent = match &mut self.turns {
            Some(turns) => turns.resume_under(plan),
            None => {
                self.turns = Some(Turns::new(plan));
                0
            }
        };
        self.epoch = epoch;
        RuntimeLogEvent::Initialized { agent, epoch, context: &context, tools, turns, resent }.emit();
    }

    fn turn_run(&mut self, params: TurnRunRequest) -> Result<(), RuntimeRefusal> {
        let turns = self.turns.as_mut().ok_or(RuntimeRefusal::NotInitialized)?;
        let step = params.step;
        let first_possible = if params.calls.is_empty() { 1 } else { 2 };
        if step < first_possible {
            let cause = format!("step {step} with {} calls: steps count from 1", params.calls.len());
            return Err(RuntimeRefusal::InvalidParams { cause });
        }
        let turn = params.turn.clone();
        match turns.run(params) {
            TurnStart::Fresh => RuntimeLogEvent::TurnStarted { turn: &turn, step }.emit(),
            TurnStart::AlreadyRunning => {}
            TurnStart::Busy => return Err(RuntimeRefusal::Busy { turns_max: TURNS_MAX }),
        }
        Ok(())
    }

    fn turn_interrupt(&mut self, params: &TurnInterruptRequest) -> Result<(), RuntimeRefusal> {
        let turns = self.turns.as_mut().ok_or(RuntimeRefusal::NotInitialized)?;
        turns.forget(&params.turn);
        RuntimeLogEvent::TurnInterrupted { turn: &params.turn }.emit();
        Ok(())
    }

    fn take_answer(&mut self, id: &Value, line: &[u8]) {
        // Our ids are strings, so any other id was never ours.
        let id = id.as_str().unwrap_or("not a string");
        let answered = match &mut self.turns {
            Some(turns) => turns.answered(id, line),
            None => AnswerEffect::Ignored,
        };
        match &answered {
            AnswerEffect::Ignored => RuntimeLogEvent::AnswerIgnored { id }.emit(),
            AnswerEffect::Continued => {}
            AnswerEffect::Finished { turn } => RuntimeLogEvent::TurnFinished { turn }.emit(),
            AnswerEffect::Dropped { turn, end } => {
                RuntimeLogEvent::TurnDropped { turn, code: end.code() }.emit();
            }
            AnswerEffect::Failed { turn, code } => RuntimeLogEvent::TurnFailed { turn, code }.emit(),
        }
    }
}

fn params<'a, P: Deserialize<'a>>(line: &'a [u8]) -> Result<P, RuntimeRefusal> {
    match serde_json::from_slice::<RequestBody<P>>(line) {
        Ok(request) => Ok(request.params),
        Err(cause) => Err(RuntimeRefusal::InvalidParams { cause: cause.to_string() }),
    }
}

fn is_error(line: &[u8]) -> bool {
    serde_json::from_slice::<Value>(line).is_ok_and(|message| message.get("error").is_some())
}

fn refuse_line(refusal: &RuntimeRefusal, out: &mut Vec<u8>) {
    RuntimeLogEvent::LineRefused { code: refusal.code() }.emit();
    push_refusal(out, &Value::Null, refusal);
}

fn push_reply(out: &mut Vec<u8>, id: &Value, reply: &impl Serialize) {
    write_result(out, id, reply);
    out.push(b'\n');
}

fn push_refusal(out: &mut Vec<u8>, id: &Value, refusal: &RuntimeRefusal) {
    write_error(out, id, &refusal.reply());
    out.push(b'\n');
}
