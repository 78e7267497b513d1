//! One turn as `turn show` prints it.

use lodge_proto::{SessionView, StepView, TurnView};

use crate::render::{ago, length, moment_ms, now_ms, now_s, one_line, or_dash, table};
use crate::words::Words;

use super::sessions::{continue_hint, wait_note};

pub(super) fn text(turn: &TurnView, session: &SessionView, words: &Words) -> String {
    let mut text = format!("{}  {}\n", words.bold(&turn.id), status(turn));
    let path = if turn.active { "" } else { ", not on its path" };
    text.push_str(&format!(
        "  agent {}, session {}, turn {}{path}\n",
        session.agent_name, turn.session, turn.number
    ));
    if let Some(replaced) = &turn.replaces {
        text.push_str(&format!("  replaces {replaced}\n"));
    }
    text.push_str(&format!("  sent {}{}\n", ago(&turn.created_at, now_s()), lasted(turn)));
    text.push_str(&format!("  {}\n", usage(turn)));
    if let Some(message) = &turn.message {
        text.push_str(&format!("\n{}\n{}", words.bold("message"), indented(message)));
    }
    if !turn.steps.is_empty() {
        let rows: Vec<Vec<String>> = turn.steps.iter().map(step_row).collect();
        let steps = table(&["KIND", "NAME", "STATUS", "TIME"], &rows);
        text.push_str(&format!("\n{}\n{}", words.bold("steps"), indented(&steps)));
    }
    if !turn.text.is_empty() {
        let heading = if turn.partial { "answer so far" } else { "answer" };
        text.push_str(&format!("\n{}\n{}", words.bold(heading), indented(&turn.text)));
    }
    if let Some(error) = &turn.error {
        text.push_str(&format!("\n{}: {} ({})\n", turn.status, one_line(&error.message), error.code));
        if let Some(hint) = &error.hint {
            text.push_str(&format!("hint: {}\n", one_line(hint)));
        }
    }
    if let Some(hint) = continue_hint(turn, session) {
        text.push_str(&format!("\n{hint}"));
    }
    text
}

fn status(turn: &TurnView) -> String {
    match (&turn.waiting, &turn.waits_for) {
        (Some(wait), _) => format!("{}{}", turn.status, wait_note(wait)),
        (None, Some(what)) => format!("{}, waits for: {what}", turn.status),
        (None, None) => turn.status.clone(),
    }
}

fn lasted(turn: &TurnView) -> String {
    let Some(ended) = &turn.ended_at else { return String::new() };
    match (moment_ms(&turn.created_at), moment_ms(ended)) {
        (Some(from), Some(to)) => format!(", took {}", length(to - from)),
        (None, _) | (_, None) => String::new(),
    }
}

fn usage(turn: &TurnView) -> String {
    let usage = &turn.usage;
    let cost = usage.cost_usd.map(|cost| format!(", ${cost:.4}")).unwrap_or_default();
    format!("{} tokens in, {} out{cost}", usage.input_tokens, usage.output_tokens)
}

fn step_row(step: &StepView) -> Vec<String> {
    let until = step.ended_at.as_deref().map_or_else(|| Some(now_ms()), moment_ms);
    let time = moment_ms(&step.started_at).zip(until).map(|(from, to)| length(to - from));
    let attempts = if step.attempt > 1 { format!(", attempt {}", step.attempt) } else { String::new() };
    let outcome = match (&step.cause, step.exit_code, step.signal) {
        (Some(cause), _, _) => format!(", {cause}"),
        (None, Some(code), _) => format!(", exit {code}"),
        (None, None, Some(signal)) => format!(", signal {signal}"),
        (None, None, None) => String::new(),
    };
    vec![
        step.kind.clone(),
        one_line(&step.name),
        format!("{}{outcome}{attempts}", step.status),
        or_dash(time.as_deref()),
    ]
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}").trim_end().to_owned() + "\n").collect()
}
