//! Turns whose whole course is known beforehand: what is sent, which effects follow, what the answer is.

use serde_json::{Value, json};

use super::effects;
use super::job_plan::JobKind;
use super::rng::CrashRng;

/// Which provider the agents use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrashModel {
    /// The scripted model inside the daemon.
    Script,
    /// An OpenAI-compatible server over HTTP that cuts streams and fails.
    OpenAi,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnShape {
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
    /// One tool that may be repeated.
    Safe,
    /// The same, and it takes long enough to be killed at work.
    SafeSlow,
    /// One tool that still runs when everything else has ended, unless it is killed.
    Long,
    /// One tool that leaves a daemon behind: forked twice, in a session of its own, with no name or place of Lodge's.
    Leave,
    /// The same, and it ignores every signal that can be ignored: ending it takes time.
    LeaveDeaf,
    /// A job that is started and ignored: its end is reported to a later turn.
    JobLeft,
    /// A job that is waited for.
    JobWaited,
    /// A job that is watched.
    JobWatched,
}

/// The job of a turn that has one.
pub const MODEL_JOB: JobKind = JobKind::Slow;
/// The separator between the daemon's note about jobs and the user's message.
const NOTE_HEAD: &str = "[A note of the system, not from the user.]\n";
const NOTE_END: &str = "\n\n";

/// One call of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedCall {
    pub tool: CrashTool,
    /// Names the call within its turn.
    pub key: &'static str,
    seconds: &'static str,
    leaves: LeftProcesses,
}

/// What is still there when a tool has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeftProcesses {
    Nothing,
    Daemon,
    DeafDaemon,
}

impl LeftProcesses {
    /// For the line of a tool.
    fn word(self) -> &'static str {
        match self {
            LeftProcesses::Nothing => "",
            LeftProcesses::Daemon => effects::LEAVE,
            LeftProcesses::DeafDaemon => effects::LEAVE_DEAF,
        }
    }
}

/// What tools and jobs run.
#[derive(Debug, Clone)]
pub struct ToolScripts {
    pub tool: String,
    pub job: String,
}

impl PlannedCall {
    fn arguments(self, lines: &ToolScripts, token: &str) -> Value {
        match self.tool {
            CrashTool::Once | CrashTool::Safe => {
                json!({"args": ["-c", lines.tool, token, self.key, self.seconds, self.leaves.word()]})
            }
            CrashTool::Submit => MODEL_JOB.call(&lines.job, token),
            CrashTool::Wait | CrashTool::Watch => json!({"job_id": "{{job}}"}),
        }
    }
}

/// What the agents have; the first two run the same line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrashTool {
    Once,
    /// Declared `safe`.
    Safe,
    /// Those of jobs.
    Submit,
    Wait,
    Watch,
}

impl CrashTool {
    /// Whether it runs in the sandbox. The job tools do not.
    pub fn is_program(self) -> bool {
        match self {
            CrashTool::Once | CrashTool::Safe => true,
            CrashTool::Submit | CrashTool::Wait | CrashTool::Watch => false,
        }
    }

    fn name(self) -> &'static str {
        match self {
            CrashTool::Once => "bash",
            CrashTool::Safe => "again",
            CrashTool::Submit => "job_submit",
            CrashTool::Wait => "job_wait",
            CrashTool::Watch => "job_watch",
        }
    }
}

/// The lines of an Agentfile that declare the tools.
pub const BINS: &str = "BIN bash host:bash \"run a line\"\nBIN again host:bash safe \"run a line that may be repeated\"\n\
     BIN sleep host:sleep \"wait\"\nBIN setsid host:setsid \"begin a session\"\n";

/// The start of the daemon's request for a summary of the turns that the model will not read again.
pub const SUMMARY_ASKED: &str = "[This is not from the user.";

const CHUNKS: u64 = 8;
const CHUNK_MS: u64 = 12;

impl TurnShape {
    /// Those that end by themselves in good time. The last two need a model that reads the id of its job.
    const USUAL: [TurnShape; 11] = [
        TurnShape::Plain,
        TurnShape::Stream,
        TurnShape::Tool,
        TurnShape::Slow,
        TurnShape::Pair,
        TurnShape::Chain,
        TurnShape::Safe,
        TurnShape::Leave,
        TurnShape::JobLeft,
        TurnShape::JobWaited,
        TurnShape::JobWatched,
    ];

    pub fn usual(model: CrashModel) -> &'static [TurnShape] {
        match model {
            CrashModel::Script => &TurnShape::USUAL[..9],
            CrashModel::OpenAi => &TurnShape::USUAL,
        }
    }

    fn word(self) -> &'static str {
        match self {
            TurnShape::Plain => "be-plain",
            TurnShape::Stream => "be-streaming",
            TurnShape::Tool => "use-one",
            TurnShape::Slow => "use-slow",
            TurnShape::Pair => "use-pair",
            TurnShape::Chain => "use-chain",
            TurnShape::Safe => "redo-it",
            TurnShape::SafeSlow => "redo-slowly",
            TurnShape::Long => "use-long",
            TurnShape::Leave => "leave-one",
            TurnShape::LeaveDeaf => "leave-a-deaf-one",
            TurnShape::JobLeft => "begin-and-go",
            TurnShape::JobWaited => "begin-and-wait",
            TurnShape::JobWatched => "begin-and-watch",
        }
    }

    /// The calls of each step.
    pub fn steps(self) -> &'static [&'static [PlannedCall]] {
        const fn once(key: &'static str, seconds: &'static str) -> PlannedCall {
            PlannedCall { tool: CrashTool::Once, key, seconds, leaves: LeftProcesses::Nothing }
        }
        const fn safe(seconds: &'static str) -> PlannedCall {
            PlannedCall { tool: CrashTool::Safe, key: "a", seconds, leaves: LeftProcesses::Nothing }
        }
        const fn job(tool: CrashTool) -> PlannedCall {
            PlannedCall { tool, key: "job", seconds: "", leaves: LeftProcesses::Nothing }
        }
        match self {
            TurnShape::Plain | TurnShape::Stream => &[],
            TurnShape::JobLeft => const { &[&[job(CrashTool::Submit)]] },
            TurnShape::JobWaited => const { &[&[job(CrashTool::Submit)], &[job(CrashTool::Wait)]] },
            TurnShape::JobWatched => const { &[&[job(CrashTool::Submit)], &[job(CrashTool::Watch)]] },
            TurnShape::Tool => const { &[&[once("a", "0.02")]] },
            TurnShape::Slow => const { &[&[once("a", "0.2")]] },
            TurnShape::Pair => const { &[&[once("a", "0.05"), once("b", "0.02")]] },
            TurnShape::Chain => const { &[&[once("a", "0")], &[once("b", "0.03")]] },
            TurnShape::Safe => const { &[&[safe("0.1")]] },
            TurnShape::SafeSlow => const { &[&[safe("2")]] },
            TurnShape::Long => const { &[&[once("a", "6")]] },
            TurnShape::Leave => {
                const { &[&[PlannedCall { leaves: LeftProcesses::Daemon, ..once("a", "0.02") }]] }
            }
            TurnShape::LeaveDeaf => {
                const { &[&[PlannedCall { leaves: LeftProcesses::DeafDaemon, ..once("a", "0.02") }]] }
            }
        }
    }

    pub fn calls(self) -> impl Iterator<Item = PlannedCall> {
        self.steps().iter().flat_map(|calls| calls.iter().copied())
    }

    /// The last tool's output is in the answer where it is certain which one that is.
    fn shows_tool_output(self) -> bool {
        match self {
            TurnShape::Plain
            | TurnShape::Stream
            | TurnShape::Pair
            | TurnShape::JobLeft
            | TurnShape::JobWaited
            | TurnShape::JobWatched => false,
            TurnShape::Tool
            | TurnShape::Slow
            | TurnShape::Chain
            | TurnShape::Safe
            | TurnShape::SafeSlow
            | TurnShape::Long
            | TurnShape::Leave
            | TurnShape::LeaveDeaf => true,
        }
    }

    fn streams(self) -> bool {
        match self {
            TurnShape::Stream | TurnShape::Chain => true,
            TurnShape::Plain
            | TurnShape::Tool
            | TurnShape::Slow
            | TurnShape::Pair
            | TurnShape::Safe
            | TurnShape::SafeSlow
            | TurnShape::Long
            | TurnShape::Leave
            | TurnShape::LeaveDeaf
            | TurnShape::JobLeft
            | TurnShape::JobWaited
            | TurnShape::JobWatched => false,
        }
    }
}

/// One turn, and everything that must come of it.
#[derive(Debug, Clone)]
pub struct TurnPlan {
    pub shape: TurnShape,
    pub token: String,
    /// What the user sends.
    pub text: String,
    /// What the answer repeats of it; none: all that the model reads.
    echo: Option<String>,
}

impl TurnPlan {
    pub fn new(
        model: CrashModel,
        shape: TurnShape,
        token: &str,
        lines: &ToolScripts,
        rng: &mut CrashRng,
    ) -> TurnPlan {
        let text = match model {
            CrashModel::Script => format!("{} {token}", shape.word()),
            CrashModel::OpenAi => commands(shape, token, lines, rng),
        };
        let echo = match model {
            CrashModel::Script => None,
            CrashModel::OpenAi => Some(token.to_owned()),
        };
        TurnPlan { shape, token: token.to_owned(), text, echo }
    }

    /// The answer, given the output of the last tool and the notes about jobs before the message.
    pub fn answer(&self, last_result: &str, note: Option<&str>) -> String {
        let heard = note
            .map_or_else(|| self.text.clone(), |note| format!("{NOTE_HEAD}{note}{NOTE_END}{}", self.text));
        let echo = self.echo.as_ref().unwrap_or(&heard);
        answer(echo, if self.shape.shows_tool_output() { last_result } else { "" })
    }
}

/// The user's text in the message that a model reads.
pub fn said(heard: &str) -> &str {
    let noted = heard.strip_prefix(NOTE_HEAD).and_then(|rest| rest.split_once(NOTE_END));
    noted.map_or(heard, |(_, said)| said)
}

/// What a call does to the world, in this order.
pub fn effects_of(token: &str, key: &str) -> [String; 2] {
    [format!("{token}.{key}.begin"), format!("{token}.{key}.end")]
}

/// What a tool prints.
pub fn did(token: &str, key: &str) -> String {
    format!("did {token}.{key}\n")
}

fn answer(to: &str, said: &str) -> String {
    format!("This is the answer to {to}, at some length, so that it comes in pieces. {said}")
}

fn commands(shape: TurnShape, token: &str, lines: &ToolScripts, rng: &mut CrashRng) -> String {
    let mut text = format!("{} {token}", shape.word());
    for calls in shape.steps() {
        for (place, call) in calls.iter().enumerate() {
            let word = if place == 0 { "tool" } else { "and" };
            text.push_str(&format!(" [[{word}:{}|{}]]", call.tool.name(), call.arguments(lines, token)));
        }
    }
    if shape.streams() {
        text.push_str(&format!(" [[chunks:{CHUNKS}:{CHUNK_MS}]]"));
    }
    let faults =
        ["", "", "", "[[cut:1]]", "[[cut:3]]", "[[status-once:500]]", "[[garbage-once]]", "[[error-once]]"];
    text.push_str(rng.pick::<&str>(&faults));
    let said = if shape.shows_tool_output() { "{{tool}}" } else { "" };
    text.push_str(&format!("[[reply:{}]]", answer(token, said)));
    text
}

/// The scripted model's file; JSON is YAML.
pub fn script(lines: &ToolScripts) -> Value {
    let others = [TurnShape::SafeSlow, TurnShape::Long, TurnShape::LeaveDeaf];
    let turns = TurnShape::usual(CrashModel::Script).iter().copied().chain(others).map(|shape| {
        let calls = shape.steps().iter().map(|calls| {
            let call = |call: &PlannedCall| json!({"name": call.tool.name(), "arguments": call.arguments(lines, "{{input}}")});
            json!({"calls": calls.iter().map(call).collect::<Vec<Value>>()})
        });
        let mut steps: Vec<Value> = calls.collect();
        let said = if shape.shows_tool_output() { "{{tool}}" } else { "" };
        let mut last = json!({"text": answer("{{input}}", said)});
        if shape.streams() {
            last["chunks"] = CHUNKS.into();
            last["chunk-delay"] = format!("{CHUNK_MS}ms").into();
        }
        steps.push(last);
        json!({"when": shape.word(), "steps": steps})
    });
    let summary = json!({"when": SUMMARY_ASKED, "steps": [{"text": "What was said before, in short."}]});
    let turns: Vec<Value> = std::iter::once(summary).chain(turns).collect();
    json!({"turns": turns})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_asked_for_in_the_words_of_the_daemon() {
        let daemon = include_str!("../../../daemon/src/context.rs");
        assert_eq!(daemon.matches(SUMMARY_ASKED).count(), 2, "once for each kind of summary");
    }

    #[test]
    fn a_note_is_distinguished_from_what_was_said_by_the_words_of_the_daemon() {
        let daemon = include_str!("../../../daemon/src/context.rs");
        assert!(daemon.contains(&format!("const NOTE_HEAD: &str = {:?};", NOTE_HEAD.trim_end())));
        assert_eq!(said(&format!("{NOTE_HEAD}[a job\nand another]{NOTE_END}hello\n\nyou")), "hello\n\nyou");
        assert_eq!(said("hello\n\nyou"), "hello\n\nyou");
    }
}
