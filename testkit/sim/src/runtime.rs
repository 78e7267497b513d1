//! The agent loop, as the runtime protocol describes it: it asks, it asks again after a new `initialize`, it forgets.

use lodge_core::epoch::Strategy;
use lodge_core::record::{CallRecord, FailureRecord};
use lodge_core::{SandboxId, TurnId};
use lodge_engine::jobs::JobWish;
use lodge_engine::{Ask, AskId, RuntimeAnswer};
use lodge_exec::ExecName;
use serde_json::json;

use crate::jobs::wish_of;
use crate::keeper::{KeeperMessage, SimExec, SimExit};
use crate::plan::Mutation;
use crate::world::{SimEvent, SimWorld};

/// Model calls in one turn.
const ITERATIONS_MAX: u32 = 20;

/// A line to a runtime.
#[derive(Debug)]
pub enum LineToRuntime {
    Initialize { probe: (u64, u32), epoch: u64 },
    Run { turn: TurnId, number: u32, from_turn: u32, step: u32, calls: Vec<CallRecord> },
    Interrupt { turn: TurnId },
    Answer { id: AskId, answer: Result<RuntimeAnswer, FailureRecord> },
}

/// A line from a runtime.
#[derive(Debug)]
pub enum LineFromRuntime {
    Ready { probe: (u64, u32), running: Vec<TurnId> },
    Stale { probe: (u64, u32) },
    Asked { id: AskId, ask: Ask },
    Refused { turn: TurnId },
}

#[derive(Debug, Default)]
pub struct SimRuntime {
    pub run: u32,
    epoch: u64,
    turns: Vec<SimTurn>,
    unanswered: Vec<(String, Ask)>,
    /// Stopped: it reads nothing until it wakes.
    pub hung: bool,
    unread: Vec<LineToRuntime>,
}

#[derive(Debug)]
struct SimTurn {
    id: TurnId,
    /// The first turn that its model reads.
    from_turn: u32,
    step: u32,
}

impl SimWorld {
    pub fn runtime_starts(&mut self, id: &SandboxId, runtime: u32) {
        let run = self.serial();
        let Some(keeper) = self.machine.keeper(id) else { return };
        if keeper.runtime.is_some() {
            return self.fail(format!("{id} was to have two runtimes at once: run {runtime} is the second"));
        }
        keeper.running.insert(ExecName::Runtime { run: runtime }, SimExec { run, doomed: false });
        keeper.runtime = Some(SimRuntime { run: runtime, ..SimRuntime::default() });
    }

    /// The runtime's process ends; its keeper lives and records it.
    pub fn runtime_ends(&mut self, id: &SandboxId, ended: SimExit) {
        let Some(sandbox) = self.machine.sandboxes.get_mut(id) else { return };
        let Some(keeper) = &mut sandbox.keeper else { return };
        let Some(runtime) = keeper.runtime.take() else { return };
        let exec = ExecName::Runtime { run: runtime.run };
        keeper.running.remove(&exec);
        keeper.ended.insert(exec.clone());
        sandbox.shelf.insert(exec.clone(), Some(ended));
        self.say(|| format!("the runtime of {id} ends: {ended:?}"));
        self.send_to_daemon(id, KeeperMessage::Exited { exec, ended });
    }

    /// A stopped process reads on from where it was.
    pub fn runtime_wakes(&mut self, id: &SandboxId, serial: u64) {
        let keeper = self.machine.keeper(id).filter(|keeper| keeper.serial == serial);
        let Some(runtime) = keeper.and_then(|keeper| keeper.runtime.as_mut()) else { return };
        runtime.hung = false;
        for line in std::mem::take(&mut runtime.unread) {
            self.runtime_hears(id, line);
        }
    }

    pub fn runtime_hears(&mut self, id: &SandboxId, line: LineToRuntime) {
        let odd = self.rng.below(1_000);
        let resends = self.mutation != Mutation::NoResend;
        let Some(runtime) = self.machine.keeper(id).and_then(|keeper| keeper.runtime.as_mut()) else {
            return;
        };
        if runtime.hung {
            runtime.unread.push(line);
            return;
        }
        let mut said = Vec::new();
        match line {
            LineToRuntime::Initialize { probe, epoch } if epoch < runtime.epoch => {
                said.push(LineFromRuntime::Stale { probe })
            }
            LineToRuntime::Initialize { probe, epoch } => {
                runtime.epoch = epoch;
                let running = runtime.turns.iter().map(|turn| turn.id.clone()).collect();
                said.push(LineFromRuntime::Ready { probe, running });
                if resends {
                    said.extend(runtime.unanswered.iter().map(|(id, ask)| asked(id, ask)));
                }
            }
            LineToRuntime::Run { turn, .. } if odd < 3 => said.push(LineFromRuntime::Refused { turn }),
            LineToRuntime::Run { turn, number, from_turn, step, calls } => {
                if !runtime.turns.iter().any(|known| known.id == turn) {
                    runtime.turns.push(SimTurn { id: turn.clone(), from_turn, step });
                    if step == 1 && number > from_turn && odd.is_multiple_of(3) {
                        runtime.compact(&turn, from_turn + 1, number, odd, &mut said);
                    } else {
                        runtime.call_tools(&turn, step.saturating_sub(1), calls, odd, &mut said);
                        runtime.go_on(&turn, &mut said);
                    }
                }
            }
            LineToRuntime::Interrupt { turn } => runtime.forget(&turn),
            LineToRuntime::Answer { id, answer } => runtime.answered(&id, answer, odd, &mut said),
        }
        if !self.calm && self.rng.chance(self.plan.lies) {
            said.extend(self.lie());
        }
        self.note_refusals(id, &said);
        for one in said {
            self.send_to_daemon(id, KeeperMessage::Said(one));
        }
    }

    fn note_refusals(&mut self, id: &SandboxId, said: &[LineFromRuntime]) {
        let Some(agent) = self.machine.sandboxes.get(id).map(|sandbox| sandbox.agent.clone()) else { return };
        for one in said {
            if let LineFromRuntime::Refused { turn } = one
                && self.disk.turn(turn).is_some_and(|kept| kept.row.agent == agent)
            {
                self.clients.refused.insert(turn.clone());
            }
        }
    }

    /// Something that is not so, about any turn that anybody heard of: at worst another agent's.
    fn lie(&mut self) -> Option<LineFromRuntime> {
        let turn = self.rng.pick(&self.clients.turns)?.clone();
        // It may harm its own: such a turn need not end by itself.
        self.clients.harmed.insert(turn.clone());
        let step = u32::try_from(self.rng.below(4)).unwrap_or(0);
        let call = format!("c{}", self.rng.below(5));
        let job = self.rng.pick(&self.clients.jobs).cloned();
        let ask = match (self.rng.below(8), job) {
            (6, Some(job)) => Ask::Job { turn, step, call, wish: JobWish::Status { job } },
            (7, Some(job)) => Ask::Job { turn, step, call, wish: JobWish::Cancel { job } },
            (0, _) => return Some(LineFromRuntime::Refused { turn }),
            (1, _) => Ask::Model { turn, step, context: "c".to_owned(), from_turn: 1 },
            (2, _) => {
                let (bin, args, stdin) = ("sh".to_owned(), Vec::new(), Vec::new());
                Ask::Exec { turn, step, call, bin, args, stdin, timeout_ms: 0 }
            }
            (4, _) => Ask::Compact { turn, from_turn: step, strategy: Strategy::Summarize },
            (3, _) => Ask::Answer { turn, step, call, text: "a lie".to_owned(), error: false },
            (_, _) => Ask::Finish { turn, code: "lie".to_owned(), message: "a lie".to_owned() },
        };
        Some(LineFromRuntime::Asked { id: AskId(json!("lie")), ask })
    }

    /// Stops a runtime for a while.
    pub fn runtime_hangs(&mut self, id: &SandboxId) {
        let pause = self.rng.between(1_000, self.plan.hang_ms);
        let Some(keeper) = self.machine.keeper(id) else { return };
        let serial = keeper.serial;
        let Some(runtime) = &mut keeper.runtime else { return };
        runtime.hung = true;
        self.after(pause, SimEvent::RuntimeWakes { sandbox: id.clone(), keeper: serial });
    }
}

impl SimRuntime {
    fn forget(&mut self, turn: &TurnId) {
        self.turns.retain(|known| known.id != *turn);
        self.unanswered.retain(|(_, ask)| ask.turn() != turn);
    }

    fn ask(&mut self, id: String, ask: Ask, said: &mut Vec<LineFromRuntime>) {
        said.push(asked(&id, &ask));
        self.unanswered.push((id, ask));
    }

    fn answered(
        &mut self,
        id: &AskId,
        answer: Result<RuntimeAnswer, FailureRecord>,
        odd: u64,
        said: &mut Vec<LineFromRuntime>,
    ) {
        let Some(at) = self.unanswered.iter().position(|(known, _)| Some(known.as_str()) == id.0.as_str())
        else {
            return;
        };
        let (_, ask) = self.unanswered.remove(at);
        let turn = ask.turn().clone();
        match (ask, answer) {
            (Ask::Finish { .. }, _) => self.forget(&turn),
            (Ask::Model { .. }, Ok(RuntimeAnswer::Model { finished: true, .. })) => self.forget(&turn),
            (Ask::Model { step, .. }, Ok(RuntimeAnswer::Model { finished: false, calls })) => {
                self.model_answered(&turn, step, calls, odd, said);
            }
            (Ask::Compact { .. }, Ok(RuntimeAnswer::Compacted { from_turn })) => {
                if let Some(running) = self.turns.iter_mut().find(|known| known.id == turn) {
                    running.from_turn = from_turn;
                }
                self.go_on(&turn, said);
            }
            (
                Ask::Exec { .. } | Ask::Answer { .. } | Ask::Job { .. },
                Ok(RuntimeAnswer::Done | RuntimeAnswer::Call(_)),
            ) => self.go_on(&turn, said),
            (ask, Ok(answer)) => panic!("{ask:?} was answered {answer:?}"),
            (
                Ask::Model { .. }
                | Ask::Exec { .. }
                | Ask::Answer { .. }
                | Ask::Compact { .. }
                | Ask::Job { .. },
                Err(failure),
            ) => {
                if matches!(failure.code.as_str(), "turn.gone" | "turn.interrupted" | "turn.failed") {
                    return self.forget(&turn);
                }
                self.unanswered.retain(|(_, ask)| *ask.turn() != turn);
                let FailureRecord { code, message, .. } = failure;
                self.ask(format!("{turn}:f"), Ask::Finish { turn, code, message }, said);
            }
        }
    }

    fn model_answered(
        &mut self,
        turn: &TurnId,
        step: u32,
        calls: Vec<CallRecord>,
        odd: u64,
        said: &mut Vec<LineFromRuntime>,
    ) {
        if let Some(running) = self.turns.iter_mut().find(|known| known.id == *turn) {
            running.step = step + 1;
        }
        self.call_tools(turn, step, calls, odd, said);
        self.go_on(turn, said);
    }

    fn call_tools(
        &mut self,
        turn: &TurnId,
        step: u32,
        calls: Vec<CallRecord>,
        odd: u64,
        said: &mut Vec<LineFromRuntime>,
    ) {
        for (at, call) in calls.iter().enumerate() {
            // The same id twice is one call.
            if calls[..at].iter().any(|before| before.id == call.id) {
                continue;
            }
            let (turn, bin) = (turn.clone(), call.name.clone());
            // A careless runtime asks for a tool that its agent does not have.
            let knows = bin != "nope" || odd.is_multiple_of(50);
            let ask = if let Some(wish) = wish_of(call) {
                Ask::Job { turn: turn.clone(), step, call: call.id.clone(), wish }
            } else if call.arguments == "{}" && knows {
                let (args, stdin) = (vec!["x".to_owned()], Vec::new());
                let timeout_ms = 600_000;
                Ask::Exec { turn: turn.clone(), step, call: call.id.clone(), bin, args, stdin, timeout_ms }
            } else {
                let text = "not run".to_owned();
                Ask::Answer { turn: turn.clone(), step, call: call.id.clone(), text, error: true }
            };
            self.ask(format!("{turn}:t{step}.{}", call.id), ask, said);
        }
    }

    /// Asks for a new epoch that begins with one of some turns.
    fn compact(&mut self, turn: &TurnId, from: u32, upto: u32, odd: u64, said: &mut Vec<LineFromRuntime>) {
        let strategy = match odd % 5 {
            0 | 1 => Strategy::Sliding,
            2 => Strategy::Handoff,
            _ => Strategy::Summarize,
        };
        let from_turn = from + u32::try_from(odd).unwrap_or(0) % (upto + 1 - from);
        let ask = Ask::Compact { turn: turn.clone(), from_turn, strategy };
        self.ask(format!("{turn}:e{from_turn}"), ask, said);
    }

    /// Asks the model again once nothing of the turn is unanswered.
    fn go_on(&mut self, turn: &TurnId, said: &mut Vec<LineFromRuntime>) {
        if self.unanswered.iter().any(|(_, ask)| ask.turn() == turn) {
            return;
        }
        let Some(running) = self.turns.iter().find(|known| known.id == *turn) else { return };
        let (step, from_turn) = (running.step, running.from_turn);
        let turn = turn.clone();
        if step > ITERATIONS_MAX {
            let (code, message) = ("turn.max_iterations".to_owned(), "too many".to_owned());
            self.ask(format!("{turn}:f"), Ask::Finish { turn, code, message }, said);
        } else {
            let ask = Ask::Model { turn: turn.clone(), step, context: "c".to_owned(), from_turn };
            self.ask(format!("{turn}:m{step}"), ask, said);
        }
    }
}

fn asked(id: &str, ask: &Ask) -> LineFromRuntime {
    LineFromRuntime::Asked { id: AskId(json!(id)), ask: ask.clone() }
}
