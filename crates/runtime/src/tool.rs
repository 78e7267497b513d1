//! From what a model wrote to a program's arguments.
//!
//! Owns: the form of a tool call, its limits, and the error texts that help a model to correct it. Never: runs
//! anything.

use std::fmt;

use lodge_runtime_messages::{AnswerCall, ToolDeclaration, ToolOffer};
use serde_json::{Map, Value, json};

use crate::jobs;

/// Calls of one answer beyond this many are answered without being run.
pub(crate) const CALLS_A_STEP_MAX: usize = 64;

/// The kernel's limit for one argument, without its terminator.
const ARG_BYTES_MAX: usize = 128 * 1024 - 1;
/// More than any program wants, and far fewer than what can be handed to a sandbox in one piece.
const ARGS_MAX: usize = 4096;
/// Two megabytes together stay below a line's limit even if every byte needs a six-byte escape.
const ARGS_BYTES_MAX: usize = 1024 * 1024;
const STDIN_BYTES_MAX: usize = 1024 * 1024;

/// Names shown to a model that called an unknown tool.
const NAMES_SHOWN_MAX: usize = 50;
const NAME_CHARS_SHOWN_MAX: usize = 64;

const FORM: &str = "Arguments are a JSON object such as {\"args\": [\"--help\"], \"stdin\": \"\"}: `args` is a \
    list of strings, one per argument of the program (no shell), `stdin` is text for its standard input; both may be \
    left out.";

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Invocation {
    pub(crate) args: Vec<String>,
    pub(crate) stdin: String,
}

/// Why a call was not run. Its text is written for the model.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CallRefusal {
    UnknownTool { name: String, known: Vec<String> },
    WrongForm { what: &'static str },
    NulInArgument,
    TooLarge { what: &'static str, bytes: usize, bytes_max: usize },
    TooManyArgs { args: usize },
    TooMany,
}

impl fmt::Display for CallRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Not run: ")?;
        match self {
            CallRefusal::UnknownTool { name, known } => {
                write!(f, "there is no tool `{name}`. The tools are: {}.", known.join(", "))
            }
            CallRefusal::WrongForm { what } => write!(f, "{what}. {FORM}"),
            CallRefusal::NulInArgument => {
                f.write_str("an argument contains a NUL character; use `stdin` for such data.")
            }
            CallRefusal::TooLarge { what, bytes, bytes_max } => {
                write!(
                    f,
                    "{what} has {bytes} bytes, the most is {bytes_max}. Write large data to a file in pieces."
                )
            }
            CallRefusal::TooManyArgs { args } => {
                write!(
                    f,
                    "`args` has {args} arguments, the most is {ARGS_MAX}. Call the tool several times with \
                     fewer arguments each, or pass them as text in `stdin` if the program reads it."
                )
            }
            CallRefusal::TooMany => {
                write!(
                    f,
                    "one answer may contain at most {CALLS_A_STEP_MAX} tool calls. Ask again in the next one."
                )
            }
        }
    }
}

/// The invocation for a call, or an error text for the model.
pub(crate) fn check(tools: &[String], call: &AnswerCall) -> Result<Invocation, CallRefusal> {
    if !tools.contains(&call.name) {
        let name = call.name.chars().take(NAME_CHARS_SHOWN_MAX).collect();
        let known = tools.iter().take(NAMES_SHOWN_MAX).cloned().chain(jobs::names(tools).map(str::to_owned));
        let known = known.collect();
        return Err(CallRefusal::UnknownTool { name, known });
    }
    let invocation = match &call.arguments {
        // Providers send nothing for a call without arguments.
        Value::String(text) if text.trim().is_empty() => Invocation::default(),
        Value::String(text) => match serde_json::from_str(text) {
            Ok(arguments) => invocation(&arguments)?,
            Err(_) => return Err(CallRefusal::WrongForm { what: "the arguments are not valid JSON" }),
        },
        arguments => invocation(arguments)?,
    };
    within_limits(&invocation.args, &invocation.stdin)?;
    Ok(invocation)
}

fn invocation(arguments: &Value) -> Result<Invocation, CallRefusal> {
    let wrong = |what| Err(CallRefusal::WrongForm { what });
    let fields = match arguments {
        Value::Null => return Ok(Invocation::default()),
        Value::Object(fields) => fields,
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            return wrong("the arguments are not a JSON object");
        }
    };
    if fields.keys().any(|key| key != "args" && key != "stdin") {
        return wrong("the arguments have fields other than `args` and `stdin`");
    }
    let (args, stdin) = words(fields)?;
    Ok(Invocation { args, stdin })
}

/// The arguments and the stdin among the fields of a call.
pub(crate) fn words(fields: &Map<String, Value>) -> Result<(Vec<String>, String), CallRefusal> {
    let wrong = |what| Err(CallRefusal::WrongForm { what });
    let mut args = Vec::new();
    match fields.get("args") {
        None | Some(Value::Null) => {}
        Some(Value::Array(items)) => {
            for item in items {
                let Value::String(arg) = item else {
                    return wrong("`args` holds something that is not a string");
                };
                args.push(arg.clone());
            }
        }
        Some(_) => return wrong("`args` is not a list"),
    }
    let stdin = match fields.get("stdin") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(stdin)) => stdin.clone(),
        Some(_) => return wrong("`stdin` is not a string"),
    };
    Ok((args, stdin))
}

pub(crate) fn within_limits(args: &[String], stdin: &str) -> Result<(), CallRefusal> {
    let at_most = |what, bytes, bytes_max| {
        if bytes > bytes_max { Err(CallRefusal::TooLarge { what, bytes, bytes_max }) } else { Ok(()) }
    };
    if args.len() > ARGS_MAX {
        return Err(CallRefusal::TooManyArgs { args: args.len() });
    }
    for arg in args {
        if arg.contains('\0') {
            return Err(CallRefusal::NulInArgument);
        }
        at_most("one argument", arg.len(), ARG_BYTES_MAX)?;
    }
    // One more each, for the terminator.
    at_most("`args`", args.iter().map(|arg| arg.len() + 1).sum(), ARGS_BYTES_MAX)?;
    at_most("`stdin`", stdin.len(), STDIN_BYTES_MAX)
}

/// The JSON schema of every tool's arguments.
pub(crate) fn parameters() -> Value {
    json!({
        "type": "object",
        "properties": {
            "args": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Arguments of the program, one string each. No shell is involved.",
            },
            "stdin": {"type": "string", "description": "Text for the program's standard input."},
        },
        "additionalProperties": false,
    })
}

/// A tool as the model sees it: the usage text is part of its description.
pub(crate) fn offer(tool: &ToolDeclaration, parameters: Value) -> ToolOffer {
    let mut description = tool.description.trim().to_owned();
    if let Some(usage) = tool.usage.as_deref().map(str::trim).filter(|usage| !usage.is_empty()) {
        if !description.is_empty() {
            description.push_str("\n\n");
        }
        description.push_str("## Usage\n\n");
        description.push_str(usage);
    }
    ToolOffer { name: tool.name.clone(), description, parameters }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(arguments: Value) -> Result<Invocation, CallRefusal> {
        check(&["cat".to_owned()], &AnswerCall { id: "c".into(), name: "cat".into(), arguments })
    }

    fn refused(arguments: Value, words: &str) {
        let text = checked(arguments).unwrap_err().to_string();
        assert!(text.contains(words), "{text}");
    }

    #[test]
    fn arguments_come_as_json_or_as_text_that_is_json() {
        let expected = Ok(Invocation { args: vec!["-n".into()], stdin: "x".into() });
        assert_eq!(checked(json!({"args": ["-n"], "stdin": "x"})), expected);
        assert_eq!(checked(json!(r#"{"args": ["-n"], "stdin": "x"}"#)), expected);
        assert_eq!(
            checked(json!({"args": [""]})),
            Ok(Invocation { args: vec!["".into()], stdin: "".into() })
        );
        let only_stdin = Ok(Invocation { args: vec![], stdin: "x".into() });
        assert_eq!(checked(json!({"args": null, "stdin": "x"})), only_stdin);
    }

    #[test]
    fn a_call_without_arguments_runs_however_the_provider_writes_it() {
        // So the schema that is shown to the model has no required field.
        assert_eq!(parameters().get("required"), None);
        for arguments in [
            json!({}),
            json!({"args": []}),
            json!({"args": [], "stdin": ""}),
            json!({"stdin": ""}),
            json!({"args": null, "stdin": null}),
            json!(null),
            json!(""),
            json!(" \n"),
            json!("{}"),
            json!("null"),
            json!(r#"{"args": []}"#),
        ] {
            assert_eq!(checked(arguments.clone()), Ok(Invocation::default()), "{arguments}");
        }
    }

    #[test]
    fn every_refusal_says_what_was_wrong() {
        refused(json!("ls -l"), "not valid JSON");
        refused(json!("x"), "{\"args\": [\"--help\"], \"stdin\": \"\"}");
        refused(json!(["ls"]), "not a JSON object");
        refused(json!("7"), "not a JSON object");
        refused(json!({"args": "ls"}), "`args` is not a list");
        refused(json!({"args": [1]}), "not a string");
        refused(json!({"args": ["a"], "stdin": 1}), "`stdin` is not a string");
        refused(json!({"args": ["a"], "cwd": "/"}), "fields other than");
        refused(json!({"args": ["a\0b"]}), "NUL");
        refused(json!({"args": ["a".repeat(ARG_BYTES_MAX + 1)]}), "one argument has");
        refused(json!({"args": vec!["a".repeat(100_000); 11]}), "`args` has 1100011 bytes");
        refused(json!({"args": vec![""; ARGS_MAX + 1]}), "`args` has 4097 arguments, the most is 4096");
        refused(json!({"stdin": "a".repeat(STDIN_BYTES_MAX + 1)}), "`stdin` has");
    }

    #[test]
    fn a_model_that_names_no_tool_gets_the_list_of_all() {
        let told = |tools: &[String]| {
            let call = AnswerCall { id: "c".into(), name: "job_output".into(), arguments: json!({}) };
            check(tools, &call).unwrap_err().to_string()
        };
        let jobs = "job_submit, job_list, job_status, job_wait, job_watch, job_cancel.";
        assert_eq!(
            told(&["cat".into()]),
            format!("Not run: there is no tool `job_output`. The tools are: cat, {jobs}")
        );
        assert_eq!(told(&[]), format!("Not run: there is no tool `job_output`. The tools are: {jobs}"));
    }

    #[test]
    fn as_many_arguments_as_are_allowed_are_run() {
        let args = vec!["a"; ARGS_MAX];
        assert_eq!(checked(json!({"args": args})).map(|invocation| invocation.args.len()), Ok(ARGS_MAX));
    }

    #[test]
    fn usage_is_part_of_the_description() {
        let tool = |usage: Option<&str>| ToolDeclaration {
            name: "t".into(),
            description: "Does.".into(),
            usage: usage.map(Into::into),
        };
        assert_eq!(offer(&tool(Some("t FILE\n")), parameters()).description, "Does.\n\n## Usage\n\nt FILE");
        assert_eq!(offer(&tool(None), parameters()).description, "Does.");
    }
}
