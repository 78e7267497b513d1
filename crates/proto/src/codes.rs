//! Every error code: what it means, and where clients find it. `docs/errors.md` has the same rows.

/// One stable error code.
#[derive(Debug, Clone, Copy)]
pub struct CodeDoc {
    pub code: &'static str,
    pub scope: CodeScope,
    pub meaning: &'static str,
}

/// Where a code is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeScope {
    /// In the error of a call, which has this status over HTTP.
    Call { http: u16 },
    /// In what happens inside a turn: `turn.failed`, `turn/get` and `session.compacted`.
    Turn,
    /// In the output of a program that cannot start.
    Startup,
}

const fn code(code: &'static str, http: u16, meaning: &'static str) -> CodeDoc {
    CodeDoc { code, scope: CodeScope::Call { http }, meaning }
}

const fn turn_code(code: &'static str, meaning: &'static str) -> CodeDoc {
    CodeDoc { code, scope: CodeScope::Turn, meaning }
}

const fn startup_code(code: &'static str, meaning: &'static str) -> CodeDoc {
    CodeDoc { code, scope: CodeScope::Startup, meaning }
}

/// A code that a client acts on. [`error_code`] makes one, so that a misspelt code does not compile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownCode(&'static str);

impl KnownCode {
    /// The code of the table that is spelled like this.
    ///
    /// # Panics
    /// If the table has no such code. In a constant, that is an error of the compiler.
    pub const fn new(code: &'static str) -> KnownCode {
        let mut at = 0;
        while at < CODES.len() {
            if is_same(CODES[at].code, code) {
                return KnownCode(CODES[at].code);
            }
            at += 1;
        }
        panic!("there is no such error code")
    }

    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

/// As `==`, which constants cannot use yet.
const fn is_same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

/// A code of the table, checked by the compiler.
#[macro_export]
macro_rules! error_code {
    ($code:literal) => {
        const { $crate::KnownCode::new($code) }
    };
}

/// All codes. A code is never renamed and never reused for another meaning.
pub const CODES: &[CodeDoc] = &[
    code("request.malformed", 400, "the body is not JSON"),
    code("request.invalid", 400, "the JSON is not a JSON-RPC 2.0 request"),
    code("request.too_large", 413, "the body is over the limit"),
    code("request.reused", 409, "this request_id was used with other parameters"),
    code("method.not_found", 404, "there is no such method"),
    code("params.invalid", 400, "the parameters do not fit the method"),
    code("auth.missing", 401, "no bearer token was sent"),
    code("auth.invalid", 401, "the token is forged, malformed or for another daemon"),
    code("auth.expired", 401, "the token has expired"),
    code("auth.revoked", 401, "the token was revoked"),
    code(
        "auth.unverified",
        401,
        "the client sent no token, because the listener did not prove that it is the daemon",
    ),
    code("auth.in_query", 400, "a token was part of the address"),
    code("auth.forbidden", 403, "tokens of that issuer may not call the method"),
    code("auth.host", 403, "the Host header names neither this machine nor an allowed name"),
    code("auth.origin", 403, "the Origin header is not allowed"),
    code("token.not_found", 404, "no token has that id"),
    code("token.ambiguous", 409, "several tokens have that id prefix"),
    code("token.bad_name", 400, "the name is not valid for a token"),
    code("token.bad_expiry", 400, "the lifetime is out of range"),
    code("token.too_many", 409, "the number of live tokens is at its limit"),
    code("daemon.busy", 503, "a queue is full; try again"),
    code("daemon.disk_full", 507, "the disk is full"),
    code("daemon.store_away", 503, "the store cannot be reached; try again"),
    code("daemon.shutting_down", 503, "the daemon is about to exit"),
    code("daemon.tls_required", 400, "the port requires TLS, and the request did not use it"),
    code("daemon.internal", 500, "a bug in Lodge"),
    code(
        "config.invalid",
        400,
        "lodged.yaml or a TLS file that it names is invalid; the settings did not change",
    ),
    code("agent.not_found", 404, "no agent has that id, name or id prefix"),
    code("agent.ambiguous", 409, "several agents have that id prefix"),
    code("agent.name_taken", 409, "another agent has that name"),
    code("agent.bad_name", 400, "the name contains invalid characters"),
    code("agent.wrong_state", 409, "the agent's state does not allow that"),
    code("agent.not_running", 409, "the agent is stopped, failed or being removed"),
    code("agent.not_cleared", 500, "the agent's files could not be removed"),
    code("agent.not_ended", 500, "the agent's processes could not be ended"),
    code("agent.bad_env", 400, "an environment key is reserved or malformed"),
    code("agent.bad_mount", 400, "a mount is not possible"),
    code("agent.mount_not_mapped", 400, "the agent cannot get the rights of the owner of a mounted path"),
    code("agent.jobs_running", 409, "jobs of the agent are running, and the request does not cancel them"),
    code("lineage.not_found", 404, "no lineage has that id"),
    code("lineage.ambiguous", 409, "several lineages have that id prefix"),
    code("lineage.ask_pending", 409, "an operator has to decide about the agent's work first"),
    code("lineage.settled", 409, "the lineage does not wait for a decision"),
    code("agentfile.invalid", 400, "the Agentfile has mistakes"),
    code("agentfile.unreadable", 400, "the Agentfile or a file it names cannot be read"),
    code("agentfile.no_model", 400, "neither the Agentfile nor the request names a model"),
    code("agentfile.unsupported", 400, "the Agentfile uses a feature that this release does not support"),
    code("agentfile.undeclared_arg", 400, "no ARG declares the build argument"),
    code("image.not_found", 404, "no image has that name or digest"),
    code("image.ambiguous", 409, "several images have that digest prefix"),
    code("image.bad_ref", 400, "the name is not valid for an image"),
    code("image.in_use", 409, "agents have the image, and this is its last name"),
    code("image.no_name", 400, "neither the Agentfile nor the request names the image"),
    code("image.name_taken", 409, "an image of the other kind (tool or agent) has that name"),
    code("image.too_many", 409, "the number of names is at its limit"),
    code("runtime.not_found", 400, "the host program named by RUNTIME is missing"),
    code(
        "image.not_packed",
        409,
        "an earlier release built the image, and its contents are not in the store",
    ),
    code("image.damaged", 500, "contents of the image are missing in the store, or are corrupt"),
    code("image.no_room", 507, "there is not enough disk space for the image"),
    code(
        "image.invalid",
        400,
        "the image or the archive is malformed, or contains values that are not allowed",
    ),
    code("image.mismatch", 400, "the image's config contradicts its Agentfile"),
    code(
        "image.name_moves",
        409,
        "the archive moves existing names to other images, and the request does not allow it",
    ),
    code(
        "image.name_claimed",
        409,
        "the archive names stock tools or registries, and the request does not allow it",
    ),
    code("image.not_an_agent", 409, "the image is not an agent"),
    code("registry.unreachable", 502, "the registry could not be reached"),
    code("registry.stalled", 502, "the registry did not respond in time"),
    code("registry.not_found", 404, "the registry has no image of that name"),
    code("registry.denied", 502, "the registry denied access with the login that it was given"),
    code("registry.login", 502, "no login for the registry was available"),
    code("registry.lies", 502, "the registry's data does not match its digest or size"),
    code("registry.refused", 502, "the registry answered with an error"),
    code("bin.not_found", 404, "no tool has that name, or the host program named by BIN is missing"),
    code("bin.not_a_bin", 409, "the image is not a tool"),
    code("bin.no_platform", 409, "the tool has no program for this host"),
    code("bin.unreadable", 400, "a program for a tool cannot be read"),
    code("bin.not_declared", 400, "the agent has no bin of that name"),
    code("provider.not_found", 404, "no provider has that name"),
    code("provider.exists", 409, "a provider has that name already"),
    code("provider.invalid", 400, "the provider's settings are wrong"),
    code("provider.bad_name", 400, "the name is not valid for a provider"),
    code("provider.bad_url", 400, "the base-url is not a valid URL"),
    code("provider.bad_key", 400, "the key has characters that cannot be sent"),
    code("provider.bad_variable", 400, "a `${NAME}` is malformed"),
    code("provider.variable_unset", 400, "a `${NAME}` is not in the daemon's environment"),
    code("provider.too_many", 409, "the number of providers is at its limit"),
    code("provider.write_failed", 500, "providers.yaml could not be written"),
    code("providers.unreadable", 400, "providers.yaml could not be read"),
    code("providers.mode", 400, "providers.yaml can be read by others"),
    code("providers.not_regular", 400, "providers.yaml is not a regular file"),
    code("providers.too_large", 400, "providers.yaml is over the limit"),
    code("providers.invalid", 400, "providers.yaml has mistakes"),
    code("model.not_listed", 400, "the provider does not list that model"),
    code("model.bad_name", 400, "a model is written <provider>/<model>"),
    code("model.unreachable", 502, "the provider could not be reached"),
    code("model.client", 500, "the HTTP client could not be created"),
    code("model.rate_limited", 502, "the provider's rate limit lasted longer than `retry-for`"),
    code("model.status", 502, "the provider answered with an error"),
    code("model.refused_auth", 502, "the provider refused the key"),
    code("model.unknown", 502, "the provider does not know the model"),
    code("model.context_too_long", 502, "the conversation is longer than the model's context"),
    code("model.error_in_stream", 502, "the provider ended the stream with an error"),
    code("model.quota", 502, "the account at the provider has no credit or quota left"),
    code("model.refused", 502, "the model refused, or its provider withheld the answer"),
    code("model.length", 502, "the answer ran out of tokens before it could be used"),
    code("model.empty", 502, "the model's answer is empty"),
    code("model.cut", 502, "the provider's answer ended before it was complete"),
    code("model.garbage", 502, "the provider's answer is malformed"),
    code("model.too_large", 502, "the provider's answer is over the limit"),
    code("model.idle", 502, "the provider sent nothing for too long"),
    code("model.too_long", 502, "the call took too long"),
    code("script.unreadable", 400, "the script could not be read"),
    code("script.not_regular", 400, "the script is not a regular file"),
    code("script.too_large", 400, "the script is over the limit"),
    code("script.invalid", 400, "the script has mistakes"),
    code("script.bad_name", 400, "the model's name cannot name a script"),
    code("script.no_user_message", 400, "there is nothing to answer"),
    code("script.no_turn", 400, "no turn of the script matches the message"),
    code("script.past_end", 400, "the script has no more steps for this turn"),
    code(
        "script.too_much_to_compare",
        400,
        "the message and the turns of the script are too long to be compared",
    ),
    code("session.not_found", 404, "there is no such session"),
    code("session.ambiguous", 409, "several sessions have that id prefix"),
    code("session.bad_id", 400, "a session id has 1 to 128 of A-Z a-z 0-9 . _ : -"),
    code("session.other_agent", 409, "that session belongs to another agent"),
    code("session.queue_full", 429, "too many turns wait in that session"),
    code("session.busy", 409, "a turn of that session waits or runs"),
    code("session.changed", 409, "the session changed while it was read; try again"),
    code("session.exists", 409, "there is a session with that id"),
    code("session.too_large", 413, "the conversation is too long for that"),
    code("search.bad_query", 400, "the query has no search terms"),
    code("turn.inactive", 409, "the turn is not on the path of its session"),
    code("turn.not_found", 404, "there is no such turn"),
    code("turn.ambiguous", 409, "several turns have that id prefix"),
    code("turn.open", 409, "the turn has not ended, so there is nothing to retry"),
    code("turn.done", 409, "the turn is done, so there is nothing to retry"),
    code("turn.not_last", 409, "only the last turn of a session can be retried"),
    code("turn.over", 409, "the turn is over already"),
    code("turn.empty", 400, "the message is empty"),
    code("turn.too_large", 413, "the message is over the limit"),
    code("turn.bad_schema", 400, "answers cannot be checked against that schema"),
    code("sandbox.not_found", 404, "no sandbox has that id"),
    code("sandbox.ambiguous", 409, "several sandboxes have that id prefix"),
    code("sandbox.bad_id", 400, "the id is not allowed, or is reserved for the daemon"),
    code("sandbox.id_taken", 409, "the id is or was the id of a sandbox"),
    code("sandbox.wrong_state", 409, "the sandbox is not in a state in which that can be done"),
    code("sandbox.too_many", 429, "too many sandboxes are live"),
    code("sandbox.bad_label", 400, "a label is invalid, or there are too many"),
    code("sandbox.no_images", 400, "the executor of this daemon runs no images as sandboxes"),
    code("sandbox.bad_tool", 400, "the tool cannot be given to a sandbox"),
    code("exec.not_found", 404, "no exec has that id"),
    code("exec.ambiguous", 409, "several execs have that id prefix"),
    code("exec.bad_id", 400, "the id is not allowed, or is reserved for the daemon"),
    code("exec.id_taken", 409, "the id is or was the id of an exec"),
    code("exec.not_running", 409, "the exec is over already"),
    code("exec.too_large", 413, "the command or the stdin is over the limit"),
    code("exec.too_many", 429, "too many execs run in the sandbox"),
    code("exec.output_unreadable", 500, "the output of the exec could not be read"),
    code("job.not_found", 404, "no job has that id"),
    code("job.ambiguous", 409, "several jobs have that id prefix"),
    code("job.not_running", 409, "the job is over already"),
    code("job.bad_label", 400, "a label is invalid, or there are too many"),
    code("job.label_reserved", 400, "the label is reserved for the daemon"),
    code("job.too_large", 413, "the arguments or the stdin are over the limit"),
    code("job.queue_full", 429, "too many jobs wait"),
    code("job.disk_low", 507, "there is not enough disk space for the output of another job"),
    code("job.output_unreadable", 500, "the output of the job could not be read"),
    code("job.output_removed", 410, "the output of the job was removed by retention"),
    code("job.bad_range", 416, "there is no output in the requested range"),
    code("work.not_found", 404, "no quarantined work has that id"),
    code("work.ambiguous", 409, "several quarantined works have that id prefix"),
    code("work.quarantined", 409, "computing it killed the daemon several times; an operator has to decide"),
    code("cursor.future", 400, "the cursor is ahead of the log"),
    code("cursor.other_log", 409, "the cursor is of another log, perhaps before a restore"),
    code("cursor.expired", 410, "the cursor is older than the kept log"),
    code("attach.bad_target", 400, "attach names exactly one of agent, session, job or all"),
    turn_code("agent.oom", "the runtime ran out of memory"),
    turn_code("bin.not_declared", "the runtime requested a tool that the agent does not have"),
    turn_code(
        "lineage.exhausted",
        "the agent died too often in a row; earlier releases ended its turns with this code",
    ),
    turn_code("model.no_summary", "the model wrote no summary; the conversation slides instead"),
    turn_code("runtime.bad_answer", "the runtime got an answer that does not fit its request"),
    turn_code("runtime.bad_request", "the daemon did not understand a request of the runtime"),
    turn_code("runtime.refused", "the runtime refused to run the turn"),
    turn_code("turn.answer_too_large", "an answer to the runtime is over the limit of a line"),
    turn_code("turn.bad_window", "the runtime wanted to leave a turn out of its own context"),
    turn_code("turn.failed", "the model gave no answer"),
    turn_code(
        "turn.max_iterations",
        "the model was called as often as `CONFIG max-iterations` allows, and still requests tools",
    ),
    turn_code("turn.no_such_call", "the runtime named a tool call that the last answer does not have"),
    turn_code("turn.open_calls", "the runtime called the model before all tool calls had a result"),
    turn_code("turn.schema_mismatch", "three answers did not fit the requested schema"),
    turn_code("turn.schema_not_checked", "the check of an answer against the schema took too long"),
    turn_code("turn.stuck", "the same tool calls had the same results four times in a row"),
    turn_code("turn.unknown_context", "the runtime named a context that it did not register"),
    turn_code("turn.wrong_step", "the runtime requested a step out of order"),
    turn_code(
        "work.quarantined",
        "the work of the turn killed the daemon several times, and an operator dropped it",
    ),
    startup_code(
        "state_dir.other_owner",
        "the state directory, a directory above it or a file in it belongs to another user",
    ),
    startup_code(
        "state_dir.writable",
        "other users can write the state directory, a directory above it or a file in it",
    ),
    startup_code(
        "state_dir.unreadable",
        "the state directory could not be checked, or its path leads through too many links",
    ),
];

/// The codes that calls are refused with, each with its HTTP status.
pub fn call_codes() -> impl Iterator<Item = (&'static CodeDoc, u16)> {
    CODES.iter().filter_map(|doc| match doc.scope {
        CodeScope::Call { http } => Some((doc, http)),
        CodeScope::Turn | CodeScope::Startup => None,
    })
}

/// The HTTP status for a dotted code; 500 for a code that no call is refused with.
pub fn http_status(code: &str) -> u16 {
    call_codes().find(|(doc, _)| doc.code == code).map_or(500, |(_, http)| http)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_code_is_listed_twice_for_one_scope() {
        let mut seen = std::collections::BTreeSet::new();
        for doc in CODES {
            let scope = std::mem::discriminant(&doc.scope);
            assert!(seen.insert((doc.code, format!("{scope:?}"))), "{} twice", doc.code);
        }
    }

    /// The rows of one section of the documentation, up to the next heading.
    fn rows(heading: &str) -> Vec<&'static str> {
        let docs = include_str!("../../../docs/errors.md");
        let (_, section) = docs.split_once(heading).expect("the section is there");
        let section = section.split("\n## ").next().unwrap_or_default();
        section.lines().filter(|line| line.starts_with("| `")).collect()
    }

    #[test]
    fn the_documentation_lists_exactly_the_codes_of_the_table() {
        for (heading, scope) in [
            ("# Error codes\n", CodeScope::Call { http: 0 }),
            ("## Inside turns\n", CodeScope::Turn),
            ("## Before there is a daemon\n", CodeScope::Startup),
        ] {
            let is_here =
                |doc: &&CodeDoc| std::mem::discriminant(&doc.scope) == std::mem::discriminant(&scope);
            let expected: Vec<String> = CODES
                .iter()
                .filter(is_here)
                .map(|doc| match doc.scope {
                    CodeScope::Call { http } => format!("| `{}` | {http} | {}", doc.code, doc.meaning),
                    CodeScope::Turn | CodeScope::Startup => format!("| `{}` | {}", doc.code, doc.meaning),
                })
                .collect();
            let rows = rows(heading);
            for row in &expected {
                assert!(
                    rows.iter().any(|found| found.starts_with(row.as_str())),
                    "docs/errors.md lacks: {row}"
                );
            }
            for found in &rows {
                let known = expected.iter().any(|row| found.starts_with(row.as_str()));
                assert!(known, "docs/errors.md has a row that `CODES` lacks: {found}");
            }
        }
    }
}
