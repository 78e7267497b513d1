//! `events`: past and new events.

use lodge_proto::{Event, EventKind, EventListParams, ListEvents, PAGE_MAX};
use serde_json::Value;

use super::CommandContext;
use super::names::AgentNames;
use crate::args::EventsArgs;
use crate::failure::CommandFailure;
use crate::follow::{DaemonClient, FollowScope, FollowedItem};
use crate::parse::kind_matches;
use crate::render::{SUMMARY_CHARS_MAX, cut, now_s, one_line, time_of_day, within};
use crate::words::put;

/// The default number of events on a terminal. Programs get the whole log.
const SHOWN_AT_TERMINAL: u32 = 50;
/// Past the end of every log, and exact in JSON.
const END: u64 = (1 << 53) - 1;
/// The column of names.
const NAME_WIDTH: usize = 12;
/// Ids stand behind what says more.
const IDS: [&str; 6] = ["session", "turn", "call", "lineage", "job", "exec"];

pub(super) async fn events(context: &CommandContext, args: EventsArgs) -> Result<(), CommandFailure> {
    args.kind.as_deref().map_or(Ok(()), check_kind)?;
    let daemon = context.daemon().await?;
    let mut log = EventPrinter { context, daemon, names: AgentNames::default(), args };
    match (log.args.follow, log.args.newest, log.args.since) {
        (true, _, _) => log.follow().await,
        (false, Some(wanted), _) => log.newest(wanted, END).await.map(drop),
        (false, None, None) if context.words.stdout_is_terminal() => {
            if log.newest(SHOWN_AT_TERMINAL, END).await? == OlderEvents::LeftOut {
                context
                    .words
                    .print_dimmed_note("older events are left out: `-n N` shows more, `--since 0` shows all");
            }
            Ok(())
        }
        (false, None, _) => log.list().await,
    }
}

/// Refuses a kind that no event has: nothing would ever be shown.
fn check_kind(wanted: &str) -> Result<(), CommandFailure> {
    if kinds().any(|kind| kind_matches(wanted, kind)) {
        return Ok(());
    }
    let given = wanted.split('.').next().unwrap_or(wanted);
    let kinds: Vec<&str> = self::kinds().filter(|kind| kind_matches(given, kind)).collect();
    let hint = if kinds.is_empty() {
        let mut families: Vec<&str> = self::kinds().filter_map(|kind| kind.split('.').next()).collect();
        families.sort_unstable();
        families.dedup();
        format!("the families are {}", families.join(", "))
    } else {
        format!("the kinds of that family are {}", kinds.join(", "))
    };
    Err(CommandFailure::usage(format!("there are no events of the kind `{wanted}`")).hint(hint))
}

/// Whether there is more before what was shown.
#[derive(Debug, PartialEq, Eq)]
enum OlderEvents {
    None,
    LeftOut,
}

struct EventPrinter<'a> {
    context: &'a CommandContext,
    daemon: DaemonClient<'a>,
    names: AgentNames,
    args: EventsArgs,
}

impl EventPrinter<'_> {
    async fn list(&mut self) -> Result<(), CommandFailure> {
        let mut since = self.args.since;
        // What happens while we read belongs to the next call: without a bound a busy daemon would never end this.
        let mut end = None;
        loop {
            let params = EventListParams { since, limit: Some(PAGE_MAX), ..self.params() };
            let page = self.daemon.call::<ListEvents>(params).await?;
            let end = *end.get_or_insert(page.head);
            for event in page.events.iter().filter(|event| event.seq <= end) {
                self.print(event).await?;
            }
            match page.next {
                Some(next) if next < end => since = Some(next),
                _ => return Ok(()),
            }
        }
    }

    /// The newest ones before a place, the oldest of them first.
    async fn newest(&mut self, wanted: u32, before: u64) -> Result<OlderEvents, CommandFailure> {
        let (wanted, mut before) = (wanted as usize, Some(before));
        let mut newest: Vec<Event> = Vec::new();
        while before.is_some() && newest.len() < wanted {
            let params =
                EventListParams { since: self.args.since, before, limit: Some(PAGE_MAX), ..self.params() };
            let page = self.daemon.call::<ListEvents>(params).await?;
            before = page.next;
            newest.extend(page.events.into_iter().rev().filter(|event| self.matches(event)));
        }
        let older =
            if before.is_some() || newest.len() > wanted { OlderEvents::LeftOut } else { OlderEvents::None };
        newest.truncate(wanted);
        for event in newest.iter().rev() {
            self.print(event).await?;
        }
        Ok(older)
    }

    async fn follow(&mut self) -> Result<(), CommandFailure> {
        let scope = match (&self.args.agent, &self.args.sandbox) {
            (Some(agent), _) => FollowScope::Agent(agent.clone()),
            (None, Some(sandbox)) => FollowScope::Sandbox(sandbox.clone()),
            (None, None) => FollowScope::All,
        };
        match self.args.newest {
            Some(wanted) => {
                // Attached before looking back, so that nothing falls between.
                self.daemon.watch(scope, None).await?;
                let before = self.daemon.cursor().map_or(END, |cursor| cursor + 1);
                self.newest(wanted, before).await?;
            }
            None => drop(self.daemon.watch(scope, self.args.since).await?),
        }
        loop {
            if let FollowedItem::Event(event) = self.daemon.next().await? {
                self.print(&event).await?;
            }
        }
    }

    fn params(&self) -> EventListParams {
        // The CLI filters families. For a single kind the daemon filters, so that it does not send the rest.
        let kind = self.args.kind.clone().filter(|kind| kind.contains('.') && !kind.ends_with('*'));
        let (agent, sandbox) = (self.args.agent.clone(), self.args.sandbox.clone());
        EventListParams { agent, sandbox, kind, ..EventListParams::default() }
    }

    fn matches(&self, event: &Event) -> bool {
        self.args.kind.as_deref().is_none_or(|wanted| kind_matches(wanted, &event.kind))
    }

    async fn print(&mut self, event: &Event) -> Result<(), CommandFailure> {
        if !self.matches(event) {
            return Ok(());
        }
        let words = &self.context.words;
        if words.json {
            return words.json_line(event);
        }
        if let Some(name) = own_name(event) {
            self.names.remember(&event.stream, name);
        }
        let name = self.names.of(&mut self.daemon, &event.stream).await?;
        // A person at a terminal has little room, and sees what happened today for the most part.
        let line = match words.columns() {
            Some(columns) => within(&line(event, time_of_day(&event.at, now_s()), &name), columns),
            None => line(event, &event.at, &name),
        };
        put(&format!("{line}\n"))
    }
}

/// What an event calls its agent. Events of turns have the names of models and tools.
fn own_name(event: &Event) -> Option<&str> {
    let about_agent = event.kind.starts_with("agent.") || event.kind.starts_with("lineage.");
    event.data.get("name").and_then(Value::as_str).filter(|_| about_agent)
}

fn line(event: &Event, at: &str, name: &str) -> String {
    let told = |key: &str| match key {
        "agent" | "sandbox" => event.data.get(key).and_then(Value::as_str) == Some(event.stream.as_str()),
        "name" => own_name(event).is_some(),
        _ => false,
    };
    let fields = event.data.iter().filter(|(key, _)| !told(key));
    let (ids, words): (Vec<_>, Vec<_>) = fields.partition(|(key, _)| IDS.contains(&key.as_str()));
    let fields: Vec<String> =
        words.into_iter().chain(ids).map(|(key, value)| format!("{key}={}", field(value))).collect();
    let summary = cut(&one_line(&fields.join(" ")), SUMMARY_CHARS_MAX);
    let (name, kind) = (one_line(name), &event.kind);
    let line = format!("{:>6}  {}  {name:<NAME_WIDTH$}  {kind:<20} {summary}", event.seq, at);
    line.trim_end().to_owned()
}

/// Words stand as they are; anything with spaces is quoted.
fn field(value: &Value) -> String {
    match value {
        Value::String(text) if !text.is_empty() && !text.contains(char::is_whitespace) => text.clone(),
        other => other.to_string(),
    }
}

/// The names of all kinds.
fn kinds() -> impl Iterator<Item = &'static str> {
    EventKind::ALL.iter().map(|kind| kind.word())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const AT: &str = "2025-03-01T00:00:00.000Z";

    fn event(kind: &str, data: &Value) -> Event {
        serde_json::from_value(json!({
            "seq": 7, "stream": "agt_1", "stream_seq": 2, "at": AT, "kind": kind, "data": data,
        }))
        .unwrap()
    }

    #[test]
    fn an_event_is_one_line_with_its_agents_name_and_ids_at_the_end() {
        let data = json!({"agent": "agt_1", "call": "c", "name": "sh", "step": 1, "text": "two\nlines", "turn": "trn_1"});
        let expected = "     7  2025-03-01T00:00:00.000Z  coder         turn.text            \
                        name=sh step=1 text=\"two\\nlines\" call=c turn=trn_1";
        assert_eq!(line(&event("turn.text", &data), AT, "coder"), expected);
    }

    #[test]
    fn a_kind_that_no_event_has_is_refused_with_those_there_are() {
        for kind in kinds().chain(["turn", "turn.*", "daemon"]) {
            assert!(check_kind(kind).is_ok(), "{kind}");
        }
        let hint = |kind: &str| match check_kind(kind) {
            Err(CommandFailure::Told(report)) => report.hint.unwrap(),
            other => panic!("{kind}: {other:?}"),
        };
        assert_eq!(
            hint("nosuchkind"),
            "the families are agent, daemon, exec, job, lineage, sandbox, session, turn, work"
        );
        assert_eq!(hint("daemon.ended"), "the kinds of that family are daemon.started, daemon.reloaded");
    }

    #[test]
    fn what_the_line_says_anyway_is_not_said_twice() {
        let data = json!({"agent": "agt_1", "name": "coder"});
        let expected = "     7  2025-03-01T00:00:00.000Z  coder         agent.ready";
        assert_eq!(line(&event("agent.ready", &data), AT, "coder"), expected);
    }
}
