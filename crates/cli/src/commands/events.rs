//! `events`: what happened, and what happens.

use lodge_proto::{Event, EventList, EventListParams, PAGE_MAX};
use serde_json::Value;

use super::Context;
use crate::args::EventsArgs;
use crate::failure::Failure;
use crate::follow::{Scope, Seen};
use crate::parse::kind_matches;
use crate::render::{SUMMARY_CHARS_MAX, cut, one_line};
use crate::words::put;

pub(super) async fn events(context: &Context, args: EventsArgs) -> Result<(), Failure> {
    if args.follow { follow(context, args).await } else { list(context, args).await }
}

async fn list(context: &Context, args: EventsArgs) -> Result<(), Failure> {
    let mut daemon = context.daemon().await?;
    let mut since = args.since;
    // What happens while we read belongs to the next call: without a bound a busy daemon would never end this.
    let mut end = None;
    loop {
        let agent = args.agent.clone();
        let params = EventListParams { since, agent, limit: Some(PAGE_MAX), ..EventListParams::default() };
        let page: EventList = daemon.call("event/list", params).await?;
        let end = *end.get_or_insert(page.head);
        for event in page.events.iter().filter(|event| event.seq <= end) {
            print(context, &args, event)?;
        }
        match page.events.last() {
            Some(last) if last.seq < end => since = Some(last.seq),
            _ => return Ok(()),
        }
    }
}

async fn follow(context: &Context, args: EventsArgs) -> Result<(), Failure> {
    let mut daemon = context.daemon().await?;
    let scope = args.agent.clone().map_or(Scope::All, Scope::Agent);
    daemon.watch(scope, args.since).await?;
    loop {
        if let Seen::Event(event) = daemon.next().await? {
            print(context, &args, &event)?;
        }
    }
}

fn print(context: &Context, args: &EventsArgs, event: &Event) -> Result<(), Failure> {
    if args.kind.as_deref().is_some_and(|wanted| !kind_matches(wanted, &event.kind)) {
        return Ok(());
    }
    if context.words.json { context.words.json_line(event) } else { put(&line(event)) }
}

fn line(event: &Event) -> String {
    let fields: Vec<String> =
        event.data.iter().map(|(key, value)| format!("{key}={}", field(value))).collect();
    let summary = cut(&one_line(&fields.join(" ")), SUMMARY_CHARS_MAX);
    let line = format!("{:>6}  {}  {}  {:<20} {summary}", event.seq, event.at, event.stream, event.kind);
    format!("{}\n", line.trim_end())
}

/// Words stand as they are; anything with spaces is quoted.
fn field(value: &Value) -> String {
    match value {
        Value::String(text) if !text.is_empty() && !text.contains(char::is_whitespace) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_event_is_one_line_with_its_fields() {
        let event: Event = serde_json::from_value(json!({
            "seq": 7, "stream": "agt_1", "stream_seq": 2, "at": "2025-03-01T00:00:00.000Z", "kind": "turn.text",
            "data": {"turn": "trn_1", "step": 1, "text": "two\nlines"},
        }))
        .unwrap();
        let expected = "     7  2025-03-01T00:00:00.000Z  agt_1  turn.text            \
                        step=1 text=\"two\\nlines\" turn=trn_1\n";
        assert_eq!(line(&event), expected);
    }
}
