//! The commands inside a user's message.
//!
//! | command | effect |
//! |---|---|
//! | `[[reply:text]]` | the answer; `{{tool}}` is the latest tool result, `{{turn}}` the number of user messages |
//! | `[[tool:name\|["a","b"]]]` | a step that calls a tool; a third part `\|"text"` is its stdin; an object stands for itself; `{{job}}` in it is the id of the job that was started last |
//! | `[[and:name\|[…]]]` | one more call in the same step |
//! | `[[delay:ms]]` | before the first byte of each reply |
//! | `[[chunks:n:ms]]` | the answer in n pieces, ms apart |
//! | `[[hold:file]]`, `[[hold-after:n:file]]` | silence until there is such a file, at once or after n pieces |
//! | `[[big:bytes]]` | an answer of that size |
//! | `[[usage:in:out]]` | the reported tokens |
//! | `[[status:500]]`, `[[status-once:500]]` | a refusal; `[[retry-after:s]]` goes with it |
//! | `[[cut:n]]`, `[[cut-always:n]]` | the connection closes after n pieces |
//! | `[[garbage]]`, `[[garbage-once]]` | a stream that is not JSON |
//! | `[[error]]`, `[[error-once]]` | an error object within the stream |
//! | `[[hang]]`, `[[hang-once]]`, `[[hang-after:n]]` | silence, at once or after n pieces |
//! | `[[no-stream]]` | one JSON object, although a stream was asked for |
//!
//! What is done once is done to the first request that bears the same user message.

use std::path::PathBuf;

use serde_json::Value;

/// What a message asks for.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct MockPlan {
    pub(super) reply: Option<String>,
    /// Calls, step by step.
    pub(super) steps: Vec<Vec<MockCall>>,
    pub(super) delay_ms: u64,
    pub(super) chunks: Option<usize>,
    pub(super) chunk_delay_ms: u64,
    pub(super) big_bytes: usize,
    pub(super) usage: Option<(u64, u64)>,
    pub(super) retry_after_s: Option<u64>,
    pub(super) hold: Option<ReplyHold>,
    pub(super) fault: Option<MockFault>,
    pub(super) once: bool,
    pub(super) no_stream: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct MockCall {
    pub(super) name: String,
    pub(super) arguments: String,
}

/// Where a reply waits for a file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ReplyHold {
    pub(super) after: usize,
    pub(super) file: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MockFault {
    Status(u16),
    CutAfter(usize),
    HangAfter(usize),
    /// Sends no header.
    Hang,
    Garbage,
    ErrorObject,
}

impl MockPlan {
    /// Reads the commands in `text`; what is not a command is ignored.
    pub(super) fn of(text: &str) -> Self {
        let mut plan = Self::default();
        let mut rest = text;
        while let Some((_, body)) = rest.split_once("[[") {
            rest = plan.take(body).unwrap_or(body);
        }
        plan
    }

    /// Takes the command at the start of `body` and returns what follows it.
    fn take<'a>(&mut self, body: &'a str) -> Option<&'a str> {
        if let Some(body) = body.strip_prefix("tool:") {
            let (call, rest) = call(body)?;
            self.steps.push(vec![call]);
            return Some(rest);
        }
        if let Some(body) = body.strip_prefix("and:") {
            let (call, rest) = call(body)?;
            self.steps.last_mut()?.push(call);
            return Some(rest);
        }
        let (inside, rest) = body.split_once("]]")?;
        let (word, value) = inside.split_once(':').unwrap_or((inside, ""));
        self.apply(word, value)?;
        Some(rest)
    }

    fn apply(&mut self, word: &str, value: &str) -> Option<()> {
        let (first, second) = value.split_once(':').unwrap_or((value, "0"));
        match word {
            "reply" => self.reply = Some(value.to_owned()),
            "delay" => self.delay_ms = value.parse().ok()?,
            "chunks" => {
                self.chunks = Some(first.parse().ok().filter(|count| *count > 0)?);
                self.chunk_delay_ms = second.parse().ok()?;
            }
            "hold" => self.hold = Some(ReplyHold { after: 0, file: value.into() }),
            "hold-after" => self.hold = Some(ReplyHold { after: first.parse().ok()?, file: second.into() }),
            "big" => self.big_bytes = value.parse().ok().filter(|bytes| *bytes <= BIG_BYTES_MAX)?,
            "usage" => self.usage = Some((first.parse().ok()?, second.parse().ok()?)),
            "retry-after" => self.retry_after_s = Some(value.parse().ok()?),
            "no-stream" => self.no_stream = true,
            _ => {
                let (fault, once) = fault(word, value)?;
                (self.fault, self.once) = (Some(fault), once);
            }
        }
        Some(())
    }
}

const BIG_BYTES_MAX: usize = 256 << 20;

fn fault(word: &str, value: &str) -> Option<(MockFault, bool)> {
    Some(match word {
        "status" => (MockFault::Status(value.parse().ok()?), false),
        "status-once" => (MockFault::Status(value.parse().ok()?), true),
        "cut" => (MockFault::CutAfter(value.parse().ok()?), true),
        "cut-always" => (MockFault::CutAfter(value.parse().ok()?), false),
        "hang-after" => (MockFault::HangAfter(value.parse().ok()?), false),
        "hang" => (MockFault::Hang, false),
        "hang-once" => (MockFault::Hang, true),
        "garbage" => (MockFault::Garbage, false),
        "garbage-once" => (MockFault::Garbage, true),
        "error" => (MockFault::ErrorObject, false),
        "error-once" => (MockFault::ErrorObject, true),
        _ => return None,
    })
}

/// `name]]`, `name|[…]]]`, `name|[…]|"stdin"]]` or `name|{…}]]`, and what follows.
fn call(body: &str) -> Option<(MockCall, &str)> {
    let end = body.find(['|', ']'])?;
    let (name, mut rest) = body.split_at(end);
    let mut parts = Vec::new();
    while let Some(json) = rest.strip_prefix('|') {
        let mut values = serde_json::Deserializer::from_str(json).into_iter::<Value>();
        parts.push(values.next()?.ok()?);
        rest = &json[values.byte_offset()..];
    }
    let rest = rest.strip_prefix("]]")?;
    let mut parts = parts.into_iter();
    let arguments = match (parts.next(), parts.next(), parts.next()) {
        (None, _, _) => serde_json::json!({ "args": [] }),
        (Some(args @ Value::Array(_)), None, _) => serde_json::json!({ "args": args }),
        (Some(args @ Value::Array(_)), Some(stdin @ Value::String(_)), None) => {
            serde_json::json!({ "args": args, "stdin": stdin })
        }
        (Some(object @ Value::Object(_)), None, _) => object,
        (Some(_), _, _) => return None,
    };
    Some((MockCall { name: name.to_owned(), arguments: arguments.to_string() }, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str, arguments: &str) -> MockCall {
        MockCall { name: name.to_owned(), arguments: arguments.to_owned() }
    }

    #[test]
    fn tools_are_read_in_steps_and_side_by_side() {
        let plan = MockPlan::of(
            r#"go [[tool:sh|["-c","echo ]] hi"]]] [[and:cat|[]|"in"]] then [[tool:ask|{"q":1}]][[tool:true]] [[reply:a ] b]]"#,
        );
        let first =
            vec![call("sh", r#"{"args":["-c","echo ]] hi"]}"#), call("cat", r#"{"args":[],"stdin":"in"}"#)];
        let steps = vec![first, vec![call("ask", r#"{"q":1}"#)], vec![call("true", r#"{"args":[]}"#)]];
        assert_eq!(plan, MockPlan { steps, reply: Some("a ] b".into()), ..MockPlan::default() });
    }

    #[test]
    fn a_hold_names_its_file_and_the_pieces_before_it() {
        let hold = |text: &str| MockPlan::of(text).hold;
        assert_eq!(hold("[[hold:/tmp/a b]]"), Some(ReplyHold { after: 0, file: "/tmp/a b".into() }));
        assert_eq!(hold("[[hold-after:3:/tmp/go]]"), Some(ReplyHold { after: 3, file: "/tmp/go".into() }));
        assert_eq!(hold("[[hold-after:/tmp/go]]"), None);
    }

    #[test]
    fn faults_and_times_are_read_and_the_rest_is_just_text() {
        let plan =
            MockPlan::of("[[delay:50]][[chunks:20:10]][[cut:3]][[nonsense]][[x [[status:abc]] [[usage:3:4]]");
        let expected = MockPlan {
            delay_ms: 50,
            chunks: Some(20),
            chunk_delay_ms: 10,
            fault: Some(MockFault::CutAfter(3)),
            once: true,
            usage: Some((3, 4)),
            ..MockPlan::default()
        };
        assert_eq!(plan, expected);
        assert_eq!(MockPlan::of("an array [[1,2],[3]] and no command"), MockPlan::default());
    }
}
