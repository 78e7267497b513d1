//! The six tools for jobs: programs that run while the conversation continues.
//!
//! Owns: the descriptions of these tools for the model, and the form of their calls. Never: a job. The daemon has the
//! jobs, and checks everything else.

use std::collections::BTreeMap;
use std::fmt;

use lodge_runtime_messages::{
    AnswerCall, JobListRequest, JobSubmitRequest, OneJobRequest, RuntimeRequest, ToolOffer,
};
use serde_json::{Map, Value, json};

use crate::tool::{self, CallRefusal};

const SUBMIT: &str = "job_submit";
const LIST: &str = "job_list";
const STATUS: &str = "job_status";
const WAIT: &str = "job_wait";
const WATCH: &str = "job_watch";
const CANCEL: &str = "job_cancel";

const STATES: [&str; 5] = ["pending", "running", "done", "error", "cancelled"];
const LIST_DEFAULT: u32 = 20;
const LIST_MAX: u32 = 100;
const PRIORITY_MAX: i32 = 100;
/// A year: the longest timeout.
const TIMEOUT_S_MAX: u32 = 365 * 24 * 60 * 60;
/// Ids are shorter; a longer one is no id, and need not be repeated.
const ID_CHARS_MAX: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobTool {
    Submit,
    List,
    Status,
    Wait,
    Watch,
    Cancel,
}

impl JobTool {
    const ALL: [JobTool; 6] =
        [JobTool::Submit, JobTool::List, JobTool::Status, JobTool::Wait, JobTool::Watch, JobTool::Cancel];

    pub(crate) fn named(name: &str) -> Option<JobTool> {
        JobTool::ALL.into_iter().find(|tool| tool.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            JobTool::Submit => SUBMIT,
            JobTool::List => LIST,
            JobTool::Status => STATUS,
            JobTool::Wait => WAIT,
            JobTool::Watch => WATCH,
            JobTool::Cancel => CANCEL,
        }
    }

    fn description(self) -> &'static str {
        match self {
            JobTool::Submit => {
                "Starts a program in the background and returns its job id at once. Use it for anything that may take \
                 longer than about 10 seconds (builds, test runs, downloads, servers), and go on with other work; call the \
                 program's own tool for what is quick. Several jobs may run at the same time. A job goes on when your turn \
                 ends, and you are told before your next turn when it has ended, so there is no need to stay for it."
            }
            JobTool::List => {
                "Lists the jobs of this conversation, the newest first: id, program, status, exit code. Use it to find the \
                 id of a job that you have lost. It shows no output."
            }
            JobTool::Status => {
                "Shows how a job stands right now and what it has written so far, without waiting. Use it to peek at one \
                 that runs, or to read stdout and stderr of one that has ended. Do not call it again and again to wait for \
                 the end: that is what job_wait is for."
            }
            JobTool::Wait => {
                "Waits until a job has ended, however long that takes, and returns its status, exit code, stdout and stderr. \
                 Use it when you need the result and have nothing else to do; one call is enough. If the user interrupts \
                 your turn meanwhile, the job is cancelled."
            }
            JobTool::Watch => {
                "Waits until a job has ended and returns its stdout alone. Use it instead of job_wait when only the output \
                 matters, or when the job must go on: if the user interrupts your turn meanwhile, it keeps running."
            }
            JobTool::Cancel => {
                "Ends a job at once, with everything that it started; one that has not begun never does. What it wrote until \
                 then is kept, and job_status shows it."
            }
        }
    }

    fn parameters(self, programs: &[String]) -> Value {
        let object = |properties: Value, required: &[&str]| json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
        match self {
            JobTool::Submit => object(submit_properties(programs), &["bin"]),
            JobTool::List => object(
                json!({
                    "status": {"type": "string", "enum": STATES, "description": "Only jobs that stand so."},
                    "limit": {
                        "type": "integer", "minimum": 1, "maximum": LIST_MAX,
                        "description": format!("How many at most; {LIST_DEFAULT} if it is left out."),
                    },
                }),
                &[],
            ),
            JobTool::Status | JobTool::Wait | JobTool::Watch | JobTool::Cancel => object(
                json!({"job_id": {"type": "string", "description": "As job_submit returned it."}}),
                &["job_id"],
            ),
        }
    }
}

fn submit_properties(programs: &[String]) -> Value {
    let mut bin =
        json!({"type": "string", "description": "The program: one of your other tools, by its name."});
    // Providers refuse a choice of nothing.
    if !programs.is_empty() {
        bin["enum"] = json!(programs);
    }
    json!({
        "bin": bin,
        "args": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Arguments of the program, one string each. No shell is involved.",
        },
        "stdin": {"type": "string", "description": "Text for the program's standard input."},
        "timeout_s": {
            "type": "integer", "minimum": 1, "maximum": TIMEOUT_S_MAX,
            "description": "Ends it after so many seconds. Left out, it takes as long as it takes.",
        },
        "priority": {
            "type": "integer", "minimum": -PRIORITY_MAX, "maximum": PRIORITY_MAX,
            "description": "Jobs of yours that wait start in this order, the highest first; 0 if it is left out.",
        },
        "labels": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "description": "Words by which people find it.",
        },
    })
}

/// The tools and their schemas, as long as no program of the agent has their name.
pub(crate) fn schemas(programs: &[String]) -> Vec<(JobTool, Value)> {
    free(programs).map(|tool| (tool, tool.parameters(programs))).collect()
}

/// The names of those tools.
pub(crate) fn names(programs: &[String]) -> impl Iterator<Item = &'static str> {
    free(programs).map(JobTool::name)
}

fn free(programs: &[String]) -> impl Iterator<Item = JobTool> {
    JobTool::ALL.into_iter().filter(|tool| !programs.iter().any(|name| name == tool.name()))
}

pub(crate) fn offer((tool, parameters): (JobTool, Value)) -> ToolOffer {
    ToolOffer { name: tool.name().to_owned(), description: tool.description().to_owned(), parameters }
}

/// Why a call was not taken. Its text is written for the model.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum JobCallRefusal {
    NotJson,
    NotAnObject,
    UnknownField { tool: JobTool, field: String },
    Missing { tool: JobTool },
    WrongKind { field: &'static str, wanted: String },
    UnknownProgram { name: String, known: Vec<String> },
    Program(CallRefusal),
}

impl fmt::Display for JobCallRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobCallRefusal::NotJson => {
                f.write_str("Not run: the arguments are not valid JSON. Give a JSON object.")
            }
            JobCallRefusal::NotAnObject => {
                f.write_str("Not run: the arguments are not a JSON object. Give one.")
            }
            JobCallRefusal::UnknownField { tool, field } => {
                write!(f, "Not run: {} has no argument `{field}`. {}", tool.name(), form(*tool))
            }
            JobCallRefusal::Missing { tool } => write!(f, "Not run: an argument is missing. {}", form(*tool)),
            JobCallRefusal::WrongKind { field, wanted } => write!(f, "Not run: `{field}` must be {wanted}."),
            JobCallRefusal::UnknownProgram { name, known } if known.is_empty() => {
                write!(f, "Not run: there is no program `{name}`; this agent has none.")
            }
            JobCallRefusal::UnknownProgram { name, known } => {
                write!(f, "Not run: there is no program `{name}`. `bin` is one of: {}.", known.join(", "))
            }
            JobCallRefusal::Program(CallRefusal::WrongForm { what }) => {
                write!(f, "Not run: {what}. {}", form(JobTool::Submit))
            }
            JobCallRefusal::Program(refused) => refused.fmt(f),
        }
    }
}

/// What arguments look like.
fn form(tool: JobTool) -> &'static str {
    match tool {
        JobTool::Submit => {
            "Its arguments are such as {\"bin\": \"make\", \"args\": [\"all\"]}; `stdin`, `timeout_s`, `priority` and \
             `labels` may be added."
        }
        JobTool::List => {
            "Its arguments are such as {\"status\": \"running\", \"limit\": 20}; both may be left out."
        }
        JobTool::Status | JobTool::Wait | JobTool::Watch | JobTool::Cancel => {
            "Its arguments are such as {\"job_id\": \"job_…\"}, with an id that job_submit returned; job_list shows them."
        }
    }
}

/// The request for a call, or an error text for the model.
pub(crate) fn ask(
    tool: JobTool,
    programs: &[String],
    turn: &str,
    step: u32,
    call: &AnswerCall,
) -> Result<RuntimeRequest, JobCallRefusal> {
    let parsed;
    let arguments = match &call.arguments {
        // A tool whose arguments can all be left out is called with nothing at all.
        Value::String(text) if text.trim().is_empty() => &Value::Null,
        Value::String(text) => {
            parsed = serde_json::from_str(text).map_err(|_| JobCallRefusal::NotJson)?;
            &parsed
        }
        other => other,
    };
    let none = Map::new();
    let fields = match arguments {
        Value::Object(fields) => fields,
        Value::Null => &none,
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            return Err(JobCallRefusal::NotAnObject);
        }
    };
    let (turn, call) = (turn.to_owned(), call.id.clone());
    let one = || {
        let job = job_id(tool, fields)?;
        Ok(OneJobRequest { turn: turn.clone(), step, call: call.clone(), job })
    };
    Ok(match tool {
        JobTool::Submit => submit(fields, programs, turn, step, call)?,
        JobTool::List => {
            only(tool, fields, &["status", "limit"])?;
            let (status, limit) = (status(fields)?, whole("limit", fields, 1, LIST_MAX)?);
            let limit = Some(limit.unwrap_or(LIST_DEFAULT));
            RuntimeRequest::JobList(JobListRequest { turn, step, call, status, limit })
        }
        JobTool::Status => RuntimeRequest::JobStatus(one()?),
        JobTool::Wait => RuntimeRequest::JobWait(one()?),
        JobTool::Watch => RuntimeRequest::JobWatch(one()?),
        JobTool::Cancel => RuntimeRequest::JobCancel(one()?),
    })
}

fn submit(
    fields: &Map<String, Value>,
    programs: &[String],
    turn: String,
    step: u32,
    call: String,
) -> Result<RuntimeRequest, JobCallRefusal> {
    only(JobTool::Submit, fields, &["bin", "args", "stdin", "timeout_s", "priority", "labels"])?;
    let bin = match fields.get("bin") {
        None | Some(Value::Null) => return Err(JobCallRefusal::Missing { tool: JobTool::Submit }),
        Some(Value::String(bin)) => bin.clone(),
        Some(_) => return wrong("bin", "the name of a program, as a string"),
    };
    if !programs.contains(&bin) {
        let mut known = programs.to_vec();
        known.sort();
        return Err(JobCallRefusal::UnknownProgram { name: bin.chars().take(ID_CHARS_MAX).collect(), known });
    }
    let (args, stdin) = tool::words(fields).map_err(JobCallRefusal::Program)?;
    tool::within_limits(&args, &stdin).map_err(JobCallRefusal::Program)?;
    let timeout_s = whole("timeout_s", fields, 1, TIMEOUT_S_MAX)?;
    let priority = whole("priority", fields, -PRIORITY_MAX, PRIORITY_MAX)?.unwrap_or(0);
    let labels = labels(fields)?;
    let timeout_ms = timeout_s.map_or(0, u64::from) * 1_000;
    let submit = JobSubmitRequest { turn, step, call, bin, args, stdin, timeout_ms, priority, labels };
    Ok(RuntimeRequest::JobSubmit(submit))
}

fn only(tool: JobTool, fields: &Map<String, Value>, known: &[&str]) -> Result<(), JobCallRefusal> {
    match fields.keys().find(|key| !known.contains(&key.as_str())) {
        Some(field) => {
            let field = field.chars().take(ID_CHARS_MAX).collect();
            Err(JobCallRefusal::UnknownField { tool, field })
        }
        None => Ok(()),
    }
}

fn wrong<T>(field: &'static str, wanted: &str) -> Result<T, JobCallRefusal> {
    Err(JobCallRefusal::WrongKind { field, wanted: wanted.to_owned() })
}

fn job_id(tool: JobTool, fields: &Map<String, Value>) -> Result<String, JobCallRefusal> {
    only(tool, fields, &["job_id"])?;
    match fields.get("job_id") {
        Some(Value::String(id)) if !id.trim().is_empty() && id.chars().count() <= ID_CHARS_MAX => {
            Ok(id.trim().to_owned())
        }
        None | Some(Value::Null) => Err(JobCallRefusal::Missing { tool }),
        Some(_) => wrong("job_id", "an id that job_submit returned, such as \"job_…\"; job_list shows them"),
    }
}

fn status(fields: &Map<String, Value>) -> Result<Option<String>, JobCallRefusal> {
    match fields.get("status") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(status)) if STATES.contains(&status.as_str()) => Ok(Some(status.clone())),
        Some(_) => wrong("status", &format!("one of: {}", STATES.join(", "))),
    }
}

fn whole<N: TryFrom<i64> + PartialOrd + fmt::Display>(
    field: &'static str,
    fields: &Map<String, Value>,
    least: N,
    most: N,
) -> Result<Option<N>, JobCallRefusal> {
    match fields.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_i64().and_then(|number| N::try_from(number).ok()) {
            Some(number) if (&least..=&most).contains(&&number) => Ok(Some(number)),
            Some(_) | None => wrong(field, &format!("a whole number from {least} to {most}")),
        },
    }
}

fn labels(fields: &Map<String, Value>) -> Result<BTreeMap<String, String>, JobCallRefusal> {
    let wanted = "an object whose values are strings, such as {\"task\": \"release\"}";
    let given = match fields.get("labels") {
        None | Some(Value::Null) => return Ok(BTreeMap::new()),
        Some(Value::Object(given)) => given,
        Some(_) => return wrong("labels", wanted),
    };
    let label = |(key, value): (&String, &Value)| match value {
        Value::String(value) => Ok((key.clone(), value.clone())),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            wrong("labels", wanted)
        }
    };
    given.iter().map(label).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn programs() -> Vec<String> {
        vec!["make".to_owned(), "cc".to_owned()]
    }

    fn asked(name: &str, arguments: Value) -> Result<Value, String> {
        let call = AnswerCall { id: "c1".into(), name: name.into(), arguments };
        let asked = ask(JobTool::named(name).unwrap(), &programs(), "trn_1", 2, &call);
        asked.map(|ask| serde_json::to_value(ask).unwrap()).map_err(|refused| refused.to_string())
    }

    fn refused(name: &str, arguments: Value, words: &str) {
        let text = asked(name, arguments).unwrap_err();
        assert!(text.starts_with("Not run: ") && text.contains(words), "{text}");
    }

    #[test]
    fn a_job_is_submitted_with_what_was_given_and_defaults_for_the_rest() {
        let full = json!({"bin": "make", "args": ["all"], "stdin": "x", "timeout_s": 90, "priority": -3, "labels": {"a": "b"}});
        let params = json!({
            "turn": "trn_1", "step": 2, "call": "c1", "bin": "make", "args": ["all"], "stdin": "x", "timeout_ms": 90_000,
            "priority": -3, "labels": {"a": "b"},
        });
        let request = json!({"method": "job/submit", "params": params});
        assert_eq!(asked(SUBMIT, full.clone()), Ok(request.clone()));
        assert_eq!(asked(SUBMIT, json!(full.to_string())), Ok(request));
        let least = asked(SUBMIT, json!({"bin": "cc"})).unwrap();
        let params = json!({
            "turn": "trn_1", "step": 2, "call": "c1", "bin": "cc", "args": [], "stdin": "", "timeout_ms": 0, "priority": 0,
            "labels": {},
        });
        assert_eq!(least["params"], params, "a program may be run without arguments");
    }

    #[test]
    fn each_tool_asks_for_its_own_method() {
        for (name, method) in
            [(STATUS, "job/status"), (WAIT, "job/wait"), (WATCH, "job/watch"), (CANCEL, "job/cancel")]
        {
            let request = asked(name, json!({"job_id": "job_1 "})).unwrap();
            let params = json!({"turn": "trn_1", "step": 2, "call": "c1", "job": "job_1"});
            assert_eq!(request, json!({"method": method, "params": params}));
        }
        for nothing in [json!(null), json!(""), json!({}), json!("{}")] {
            let params = json!({"turn": "trn_1", "step": 2, "call": "c1", "limit": 20});
            assert_eq!(asked(LIST, nothing), Ok(json!({"method": "job/list", "params": params})));
        }
        let request = asked(LIST, json!({"status": "running", "limit": 3})).unwrap();
        assert_eq!(
            (&request["params"]["status"], &request["params"]["limit"]),
            (&json!("running"), &json!(3))
        );
    }

    #[test]
    fn every_refusal_says_what_was_wrong_and_what_is_right() {
        refused(SUBMIT, json!("make all"), "not valid JSON");
        refused(SUBMIT, json!(["make"]), "not a JSON object");
        refused(SUBMIT, json!({}), "{\"bin\": \"make\"");
        refused(SUBMIT, json!({"bin": "rm"}), "`bin` is one of: cc, make.");
        refused(SUBMIT, json!({"bin": 1}), "`bin` must be the name of a program");
        refused(SUBMIT, json!({"bin": "make", "command": "all"}), "no argument `command`");
        refused(
            SUBMIT,
            json!({"bin": "make", "args": "all"}),
            "`args` is not a list. Its arguments are such as {\"bin\"",
        );
        refused(SUBMIT, json!({"bin": "make", "args": ["a\0"]}), "NUL");
        refused(
            SUBMIT,
            json!({"bin": "make", "timeout_s": "90s"}),
            "`timeout_s` must be a whole number from 1",
        );
        refused(SUBMIT, json!({"bin": "make", "timeout_s": 0}), "`timeout_s` must be a whole number from 1");
        refused(SUBMIT, json!({"bin": "make", "priority": 101}), "from -100 to 100");
        refused(SUBMIT, json!({"bin": "make", "labels": {"a": 1}}), "{\"task\": \"release\"}");
        refused(LIST, json!({"all_sessions": true}), "no argument `all_sessions`");
        refused(LIST, json!({"status": "finished"}), "pending, running, done, error, cancelled");
        refused(LIST, json!({"limit": 101}), "from 1 to 100");
        refused(WAIT, json!({}), "{\"job_id\": \"job_…\"}");
        refused(WAIT, json!({"job": "job_1"}), "no argument `job`. Its arguments are such as {\"job_id\"");
        refused(STATUS, json!({"job_id": 5}), "an id that job_submit returned");
        refused(STATUS, json!({"job_id": "x".repeat(65)}), "an id that job_submit returned");
    }

    #[test]
    fn a_program_of_the_agent_with_the_name_of_a_tool_comes_first() {
        let names = |programs: &[String]| -> Vec<&'static str> {
            let offered: Vec<&str> = schemas(programs).iter().map(|(tool, _)| tool.name()).collect();
            assert_eq!(super::names(programs).collect::<Vec<_>>(), offered);
            offered
        };
        assert_eq!(names(&programs()), [SUBMIT, LIST, STATUS, WAIT, WATCH, CANCEL]);
        assert_eq!(names(&[WAIT.to_owned()]), [SUBMIT, LIST, STATUS, WATCH, CANCEL]);
    }

    #[test]
    fn a_schema_names_the_programs_and_no_choice_of_nothing() {
        let bin = |programs: &[String]| schemas(programs)[0].1["properties"]["bin"].clone();
        assert_eq!(bin(&programs())["enum"], json!(["make", "cc"]));
        assert_eq!(bin(&[]).get("enum"), None);
    }
}
