//! The method table: the complete definition of each method.

use schemars::{JsonSchema, schema_for};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::agents::*;
use crate::attach::*;
use crate::bins::*;
use crate::daemon::*;
use crate::images::*;
use crate::jobs::*;
use crate::lineages::*;
use crate::providers::*;
use crate::quarantine::*;
use crate::sandboxes::*;
use crate::sessions::*;
use crate::snapshot::{LineageMessages, LineageSnapshot};
use crate::tokens::*;
use crate::turns::*;
use crate::{Delta, ErrorBody, Event, EventKind, Gap, Output, call_codes};

/// One method of the API.
pub trait ApiMethod: 'static {
    type Params: Serialize + DeserializeOwned + JsonSchema;
    type Reply: Serialize + DeserializeOwned + JsonSchema;

    const NAME: &'static str;
    /// Whether it changes anything, and so takes a `request_id` where its parameters have one.
    const MUTATES: bool;
    const RIGHTS: Rights;
}

/// Who may call a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rights {
    /// An operator.
    Operator,
    /// An operator, and an agent's token as far as it reaches.
    Agent(TokenReach),
}

/// Which of a method's parameters must be the caller's own, when the caller is an agent's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenReach {
    /// It names nothing that has an owner.
    Nobodys,
    /// `agent`, which may be left out.
    Agent,
    /// `agent`, and `session` where there is one.
    AgentAndSession,
    /// `agent`, and `session` where there is one, which must exist.
    AgentAndKnownSession,
    /// `session`.
    Session,
    /// `turn`.
    Turn,
    /// `job`.
    Job,
}

/// What the table says of one method.
#[derive(Clone, Copy)]
pub struct MethodDoc {
    pub name: &'static str,
    pub summary: &'static str,
    pub mutates: bool,
    pub rights: Rights,
    params: fn() -> Value,
    result: fn() -> Value,
}

impl MethodDoc {
    const fn of<M: ApiMethod>(summary: &'static str) -> MethodDoc {
        MethodDoc {
            name: M::NAME,
            summary: summary.trim_ascii(),
            mutates: M::MUTATES,
            rights: M::RIGHTS,
            params: schema::<M::Params>,
            result: schema::<M::Reply>,
        }
    }
}

impl std::fmt::Debug for MethodDoc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MethodDoc").field("name", &self.name).finish_non_exhaustive()
    }
}

fn schema<T: JsonSchema>() -> Value {
    schema_for!(T).to_value()
}

macro_rules! mutates {
    (read) => {
        false
    };
    (write) => {
        true
    };
}

/// Declares each method once: what it does, its name, whether it changes anything, its parameters, its reply, and who may
/// call it.
macro_rules! methods {
    ($(
        #[doc = $summary:literal]
        $method:ident = $name:literal, $kind:ident($params:ty) -> $reply:ty, $rights:ident $(($reach:expr))?;
    )*) => {
        $(
            #[doc = $summary]
            #[derive(Debug, Clone, Copy)]
            pub struct $method;

            impl ApiMethod for $method {
                type Params = $params;
                type Reply = $reply;

                const NAME: &'static str = $name;
                const MUTATES: bool = mutates!($kind);
                const RIGHTS: Rights = Rights::$rights $(($reach))?;
            }
        )*

        /// Every method of the API.
        pub const METHODS: &[MethodDoc] = &[$(MethodDoc::of::<$method>($summary)),*];
    };
}

methods! {
    /// Shows the daemon: its listeners, its settings, its storage and its warnings.
    GetInfo = "info", read(Empty) -> Info, Operator;
    /// Returns the JSON schema of every method, event and error.
    DiscoverApi = "rpc/discover", read(Empty) -> Discovery, Agent(TokenReach::Nobodys);
    /// Creates an agent from an Agentfile or an image, and starts it.
    CreateAgent = "agent/create", write(AgentCreateParams) -> AgentView, Operator;
    /// Lists agents. A token of an agent lists that agent alone.
    ListAgents = "agent/list", read(AgentListParams) -> AgentList, Agent(TokenReach::Nobodys);
    /// Shows one agent in full.
    GetAgent = "agent/get", read(AgentRef) -> AgentDetail, Agent(TokenReach::Agent);
    /// Starts an agent that is stopped or has failed.
    StartAgent = "agent/start", write(AgentRef) -> AgentView, Operator;
    /// Replaces the processes of an agent. Its running turns are interrupted.
    RestartAgent = "agent/restart", write(AgentStopParams) -> AgentView, Operator;
    /// Changes an agent in place.
    UpdateAgent = "agent/update", write(AgentUpdateParams) -> AgentUpdated, Operator;
    /// Stops an agent, and answers when none of its processes is left.
    StopAgent = "agent/stop", write(AgentStopParams) -> AgentView, Operator;
    /// Ends an agent's lineage. Its work is never resumed.
    KillAgent = "agent/kill", write(AgentRef) -> AgentView, Operator;
    /// Removes an agent and its files.
    RemoveAgent = "agent/remove", write(AgentRemoveParams) -> AgentView, Operator;
    /// Reads the log of an agent.
    ReadAgentLogs = "agent/logs", read(AgentLogsParams) -> AgentLogs, Operator;
    /// Sends a message to an agent, and answers when the message is durable.
    SendTurn = "turn/send", write(TurnSendParams) -> TurnView, Agent(TokenReach::AgentAndSession);
    /// Shows one turn with its steps and its answer.
    GetTurn = "turn/get", read(TurnRef) -> TurnView, Agent(TokenReach::Turn);
    /// Lists the turns of a session, of an agent or of all.
    ListTurns = "turn/list", read(TurnListParams) -> TurnList, Agent(TokenReach::AgentAndKnownSession);
    /// Interrupts a turn.
    InterruptTurn = "turn/interrupt", write(TurnInterruptParams) -> TurnView, Agent(TokenReach::Turn);
    /// Continues a turn that failed or was interrupted, in a new turn that takes over its finished steps.
    RetryTurn = "turn/retry", write(TurnRetryParams) -> TurnView, Operator;
    /// Lists sessions, newest first.
    ListSessions = "session/list", read(SessionListParams) -> SessionList, Agent(TokenReach::Agent);
    /// Shows one session and its branches.
    GetSession = "session/get", read(SessionRef) -> SessionDetail, Agent(TokenReach::Session);
    /// Lists the messages of a session.
    ListMessages = "session/messages", read(SessionMessagesParams) -> MessageList, Agent(TokenReach::Session);
    /// Searches the text of all messages.
    SearchSessions = "session/search", read(SessionSearchParams) -> SessionHits, Agent(TokenReach::AgentAndSession);
    /// Exports a session as lines of JSON, in pages.
    ExportSession = "session/export", read(SessionExportParams) -> SessionExport, Agent(TokenReach::Session);
    /// Copies a session up to a turn.
    ForkSession = "session/fork", write(SessionForkParams) -> SessionView, Operator;
    /// Takes turns off the path of a session.
    RewindSession = "session/rewind", write(SessionRewindParams) -> SessionView, Operator;
    /// Asks for another answer to a turn.
    RegenerateTurn = "session/regenerate", write(SessionRegenerateParams) -> TurnView, Operator;
    /// Makes a branch the path of its session.
    ActivateBranch = "session/branches/activate", write(SessionActivateParams) -> SessionView, Operator;
    /// Deletes a session and its messages.
    DeleteSession = "session/delete", write(SessionDeleteParams) -> SessionDeleted, Operator;
    /// Submits a job, and answers when the job is durable.
    SubmitJob = "job/submit", write(JobSubmitParams) -> JobView, Agent(TokenReach::AgentAndSession);
    /// Lists jobs, newest first.
    ListJobs = "job/list", read(JobListParams) -> JobList, Agent(TokenReach::AgentAndSession);
    /// Shows one job.
    GetJob = "job/get", read(JobRef) -> JobView, Agent(TokenReach::Job);
    /// Waits until a job is over, for a minute at most.
    WaitForJob = "job/wait", read(JobWaitParams) -> JobView, Agent(TokenReach::Job);
    /// Cancels a job, and answers when the job is over.
    CancelJob = "job/cancel", write(JobCancelParams) -> JobView, Agent(TokenReach::Job);
    /// Reads a piece of a job's output.
    ReadJobOutput = "job/output", read(JobOutputParams) -> JobOutput, Agent(TokenReach::Job);
    /// Creates a sandbox that belongs to no agent, and answers when it is durable. It is ready a moment later.
    CreateSandbox = "sandbox/create", write(SandboxCreateParams) -> SandboxView, Operator;
    /// Lists sandboxes, newest first.
    ListSandboxes = "sandbox/list", read(SandboxListParams) -> SandboxList, Operator;
    /// Shows one sandbox, in any state.
    GetSandbox = "sandbox/get", read(SandboxRef) -> SandboxView, Operator;
    /// Stops a sandbox. Its execs are cancelled, its files stay.
    StopSandbox = "sandbox/stop", write(SandboxChangeParams) -> SandboxView, Operator;
    /// Starts a sandbox again that is stopped or has failed.
    ResumeSandbox = "sandbox/resume", write(SandboxChangeParams) -> SandboxView, Operator;
    /// Stops a sandbox and removes its files. Its id is never used again.
    RemoveSandbox = "sandbox/remove", write(SandboxChangeParams) -> SandboxView, Operator;
    /// Runs a program in a sandbox, and answers when that is durable.
    RunExec = "exec/run", write(ExecRunParams) -> ExecView, Operator;
    /// Lists execs, newest first.
    ListExecs = "exec/list", read(ExecListParams) -> ExecList, Operator;
    /// Shows one exec.
    GetExec = "exec/get", read(ExecRef) -> ExecView, Operator;
    /// Cancels an exec and ends every process that it started.
    CancelExec = "exec/cancel", write(ExecCancelParams) -> ExecView, Operator;
    /// Reads pieces of what an exec wrote, now or as soon as there is one.
    ReadExecOutput = "exec/output", read(ExecOutputParams) -> ExecOutput, Operator;
    /// Builds an image from an Agentfile.
    BuildImage = "image/build", write(ImageBuildParams) -> ImageView, Operator;
    /// Lists the images of agents.
    ListImages = "image/list", read(ImageListParams) -> ImageList, Operator;
    /// Shows one image of an agent in full.
    InspectImage = "image/inspect", read(ImageRef) -> ImageDetail, Operator;
    /// Removes a name of an image, and the image with its last name.
    RemoveImage = "image/remove", write(ImageRef) -> ImageRemoved, Operator;
    /// Gives an image more names.
    TagImage = "image/tag", write(ImageTagParams) -> ImageView, Operator;
    /// Pulls an image and its tools from a registry.
    PullImage = "image/pull", write(ImagePullParams) -> ImageView, Operator;
    /// Pushes an image and its tools to a registry.
    PushImage = "image/push", write(ImagePushParams) -> ImagePushed, Operator;
    /// Compares what two images permit and contain.
    DiffImages = "image/diff", read(ImageDiffParams) -> ImageDiff, Operator;
    /// Builds the image of a tool from programs on the daemon's host.
    BuildBin = "bin/build", write(BinBuildParams) -> BinView, Operator;
    /// Lists the images of tools.
    ListBins = "bin/list", read(BinListParams) -> BinList, Operator;
    /// Shows one image of a tool in full.
    InspectBin = "bin/inspect", read(BinRef) -> BinDetail, Operator;
    /// Pulls a tool from a registry.
    PullBin = "bin/pull", write(BinPullParams) -> BinView, Operator;
    /// Pushes a tool to a registry.
    PushBin = "bin/push", write(BinPushParams) -> ImagePushed, Operator;
    /// Removes a name of a tool, and the tool with its last name.
    RemoveBin = "bin/remove", write(BinRef) -> ImageRemoved, Operator;
    /// Adds a provider of models.
    AddProvider = "provider/add", write(ProviderAddParams) -> ProviderView, Operator;
    /// Lists providers.
    ListProviders = "provider/list", read(ProviderListParams) -> ProviderList, Operator;
    /// Removes a provider.
    RemoveProvider = "provider/remove", write(ProviderRef) -> Done, Operator;
    /// Lists the models of a provider and asks one of them.
    TestProvider = "provider/test", read(ProviderTestParams) -> ProviderTested, Operator;
    /// Lists lineages.
    ListLineages = "lineage/list", read(LineageListParams) -> LineageList, Operator;
    /// Shows one lineage and its open turns.
    GetLineage = "lineage/get", read(LineageRef) -> LineageDetail, Operator;
    /// Decides what happens to a lineage that asks.
    ResolveLineage = "lineage/resolve", write(LineageResolveParams) -> LineageView, Operator;
    /// Shows the state of a lineage at its last turn boundary.
    SnapshotLineage = "lineage/snapshot", read(LineageSnapshotParams) -> LineageSnapshot, Operator;
    /// Lists the messages of a session up to that boundary.
    ListLineageMessages = "lineage/messages", read(LineageMessagesParams) -> LineageMessages, Operator;
    /// Lists events from the log, in pages.
    ListEvents = "event/list", read(EventListParams) -> EventList, Agent(TokenReach::AgentAndSession);
    /// Sends events from now on or from a cursor on. WebSocket only.
    AttachClient = "client/attach", read(AttachParams) -> Attached, Agent(TokenReach::AgentAndSession);
    /// Ends an attachment. WebSocket only.
    DetachClient = "client/detach", read(DetachParams) -> Done, Agent(TokenReach::Nobodys);
    /// Issues a token for an operator or for one agent.
    IssueToken = "token/issue", write(TokenIssueParams) -> TokenIssued, Operator;
    /// Lists tokens, without their values.
    ListTokens = "token/list", read(TokenListParams) -> TokenList, Operator;
    /// Revokes a token and closes its connections.
    RevokeToken = "token/revoke", write(TokenRef) -> TokenView, Operator;
    /// Lists work that killed the daemon several times.
    ListQuarantine = "quarantine/list", read(QuarantineListParams) -> QuarantineList, Operator;
    /// Computes quarantined work again.
    RetryQuarantined = "quarantine/retry", write(QuarantineRef) -> QuarantineView, Operator;
    /// Gives up quarantined work.
    DropQuarantined = "quarantine/drop", write(QuarantineRef) -> QuarantineView, Operator;
    /// Ends the daemon, and the agents if asked.
    ShutDownDaemon = "daemon/shutdown", write(ShutdownParams) -> Done, Operator;
    /// Removes what dead sandboxes left.
    ReapSandboxes = "daemon/reap", write(ReapParams) -> Reaped, Operator;
    /// Reads the settings again.
    ReloadSettings = "daemon/reload", write(ReloadParams) -> Reloaded, Operator;
}

impl MethodDoc {
    /// The method of this name.
    pub fn named(name: &str) -> Option<&'static MethodDoc> {
        METHODS.iter().find(|method| method.name == name)
    }
}

/// The whole API as JSON schemas.
pub fn discover(version: &str) -> Discovery {
    Discovery {
        version: version.to_owned(),
        methods: METHODS
            .iter()
            .map(|doc| MethodSchema {
                name: doc.name.to_owned(),
                summary: doc.summary.to_owned(),
                rights: match doc.rights {
                    Rights::Operator => "operator".to_owned(),
                    Rights::Agent(_) => "agent".to_owned(),
                },
                params: (doc.params)(),
                result: (doc.result)(),
                mutates: doc.mutates,
            })
            .collect(),
        event: schema::<Event>(),
        delta: schema::<Delta>(),
        output: schema::<Output>(),
        gap: schema::<Gap>(),
        progress: schema::<Progress>(),
        error: schema::<ErrorBody>(),
        event_kinds: EventKind::ALL.iter().map(|kind| kind.word().to_owned()).collect(),
        events: EventKind::ALL.iter().map(|kind| event_schema(*kind)).collect(),
        error_codes: call_codes().map(|(doc, _)| (doc.code.to_owned(), doc.meaning.to_owned())).collect(),
    }
}

fn event_schema(kind: EventKind) -> EventSchema {
    let doc = kind.doc();
    EventSchema { kind: doc.name.to_owned(), summary: doc.summary.to_owned(), data: doc.schema.to_value() }
}
