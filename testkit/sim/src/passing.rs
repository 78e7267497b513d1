//! The exchange between the engine and the daemon's process: effects in one direction, observations in the other. Most
//! deliberate bugs are injected here.

use lodge_core::job::{JobState, JobWrite};
use lodge_core::record::{SessionWrite, StepKind, TurnWrite, Write};
use lodge_engine::jobs::JobObservation;
use lodge_engine::{
    AgentComponent, AgentEffect, AgentObservation, Batch, BatchOutput, Effect, ExecOutcome, Input,
    Observation, SandboxEffect, TurnObservation, WorkEffect,
};

use crate::life::LifeOrder;
use crate::plan::SimMutation;
use crate::words;
use crate::world::SimWorld;

impl SimWorld {
    pub fn mutate(&mut self, batch: &mut Batch) {
        match self.mutation {
            SimMutation::EarlyRelease => {
                let early = std::mem::take(&mut batch.after);
                self.release_outs(early);
            }
            SimMutation::LostIntent => {
                let starts = |out: &BatchOutput| {
                    matches!(
                        out,
                        BatchOutput::Act(Effect::Sandbox {
                            what: SandboxEffect::StartExec { resumed: false, .. },
                            ..
                        })
                    )
                };
                if batch.after.iter().any(starts) {
                    let is_tool = |write: &Write| matches!(write, Write::Turn(TurnWrite::Step(step)) if step.kind() == StepKind::Tool);
                    batch.writes.retain(|write| !is_tool(write));
                }
            }
            SimMutation::LostStart => batch.writes.retain(|write| match write {
                Write::Job(JobWrite::Progress { progress, .. }) => {
                    progress.state != JobState::Running || progress.cancel.is_some()
                }
                _ => true,
            }),
            SimMutation::LostCut => {
                batch.writes.retain(|write| !matches!(write, Write::Session(SessionWrite::Path(_))))
            }
            SimMutation::None
            | SimMutation::NoResend
            | SimMutation::BlindRerun
            | SimMutation::LostExecEnd
            | SimMutation::IgnoredRevocation
            | SimMutation::HastyDeath
            | SimMutation::EarlyForget
            | SimMutation::LostEndReport
            | SimMutation::LostPull
            | SimMutation::LoosePull
            | SimMutation::GreedyCollection
            | SimMutation::AwayIsWritten
            | SimMutation::EarlyRest
            | SimMutation::LostWait
            | SimMutation::LostResults
            | SimMutation::LostClaims => {}
        }
    }

    /// Sends an effect to the daemon's process.
    pub fn act(&mut self, mut effect: Effect) {
        match &mut effect {
            Effect::Token(row)
                if self.mutation == SimMutation::IgnoredRevocation && row.revoked_at.is_some() =>
            {
                return;
            }
            Effect::Sandbox { what: SandboxEffect::StartExec { safe, .. }, .. } => {
                *safe |= self.mutation == SimMutation::BlindRerun;
            }
            Effect::Sandbox { agent, what: SandboxEffect::KillRuntime { run }, .. }
                if self.mutation == SimMutation::HastyDeath =>
            {
                let (agent, run, detail) = (agent.clone(), *run, "it was asked to end".to_owned());
                self.report(Observation::Agent(AgentObservation::Died {
                    agent,
                    run,
                    part: AgentComponent::Runtime,
                    detail,
                }));
            }
            Effect::Agent(AgentEffect::LookUp { .. }) => self.tally.looked_up += 1,
            Effect::Work(WorkEffect::Decided { work, .. }) => {
                let work = work.clone();
                self.work_decided(&work);
            }
            _ => {}
        }
        self.trace.trace_line(self.now, || format!("act {}", words::effect(&effect)));
        self.order(LifeOrder::Act(Box::new(effect)));
    }

    /// Receives an observation of the daemon's process.
    pub fn observe(&mut self, input: Input) {
        match &input {
            Input::Seen(Observation::Turn(TurnObservation::ExecEnded { .. }))
                if self.mutation == SimMutation::LostExecEnd =>
            {
                return;
            }
            Input::Seen(Observation::Turn(TurnObservation::ExecEnded { end, .. }))
                if end.how == ExecOutcome::Lost =>
            {
                self.tally.unknown += 1;
            }
            Input::Seen(Observation::Job(JobObservation::Ended { end, .. }))
                if end.how == ExecOutcome::Lost =>
            {
                self.tally.unknown += 1;
            }
            Input::Seen(_) | Input::Api { .. } => {}
        }
        self.input(input);
    }
}
