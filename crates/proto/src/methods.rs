//! The method table: every name, what it takes, what it gives.

use schemars::{JsonSchema, schema_for};
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
use crate::sessions::*;
use crate::snapshot::{LineageMessages, LineageSnapshot};
use crate::tokens::*;
use crate::turns::*;
use crate::{CODES, Delta, ErrorBody, Event, EventKind, Gap, Output};

/// One row of the method table.
#[derive(Clone, Copy)]
pub struct MethodDoc {
    pub name: &'static str,
    /// Whether it changes anything, and so takes a `request_id` where its parameters have one.
    pub mutates: bool,
    params: fn() -> Value,
    result: fn() -> Value,
}

impl std::fmt::Debug for MethodDoc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MethodDoc").field("name", &self.name).finish_non_exhaustive()
    }
}

fn schema<T: JsonSchema>() -> Value {
    schema_for!(T).to_value()
}

const fn read<P: JsonSchema, R: JsonSchema>(name: &'static str) -> MethodDoc {
    MethodDoc { name, mutates: false, params: schema::<P>, result: schema::<R> }
}

const fn write<P: JsonSchema, R: JsonSchema>(name: &'static str) -> MethodDoc {
    MethodDoc { name, mutates: true, params: schema::<P>, result: schema::<R> }
}

/// Every method of the API.
pub const METHODS: &[MethodDoc] = &[
    read::<Empty, Info>("info"),
    read::<Empty, Discovery>("rpc/discover"),
    write::<AgentCreateParams, AgentView>("agent/create"),
    read::<AgentListParams, AgentList>("agent/list"),
    read::<AgentRef, AgentDetail>("agent/get"),
    write::<AgentRef, AgentView>("agent/start"),
    write::<AgentStopParams, AgentView>("agent/restart"),
    write::<AgentUpdateParams, AgentUpdated>("agent/update"),
    write::<AgentStopParams, AgentView>("agent/stop"),
    write::<AgentRef, AgentView>("agent/kill"),
    write::<AgentRemoveParams, AgentView>("agent/remove"),
    read::<AgentLogsParams, AgentLogs>("agent/logs"),
    write::<TurnSendParams, TurnView>("turn/send"),
    read::<TurnRef, TurnView>("turn/get"),
    read::<TurnListParams, TurnList>("turn/list"),
    write::<TurnInterruptParams, TurnView>("turn/interrupt"),
    read::<SessionListParams, SessionList>("session/list"),
    read::<SessionRef, SessionDetail>("session/get"),
    read::<SessionMessagesParams, MessageList>("session/messages"),
    read::<SessionSearchParams, SessionHits>("session/search"),
    read::<SessionExportParams, SessionExport>("session/export"),
    write::<SessionForkParams, SessionView>("session/fork"),
    write::<SessionRewindParams, SessionView>("session/rewind"),
    write::<SessionRegenerateParams, TurnView>("session/regenerate"),
    write::<SessionActivateParams, SessionView>("session/branches/activate"),
    write::<SessionDeleteParams, SessionDeleted>("session/delete"),
    write::<JobSubmitParams, JobView>("job/submit"),
    read::<JobListParams, JobList>("job/list"),
    read::<JobRef, JobView>("job/get"),
    read::<JobWaitParams, JobView>("job/wait"),
    write::<JobCancelParams, JobView>("job/cancel"),
    read::<JobOutputParams, JobOutput>("job/output"),
    write::<ImageBuildParams, ImageView>("image/build"),
    read::<ImageListParams, ImageList>("image/list"),
    read::<ImageRef, ImageDetail>("image/inspect"),
    write::<ImageRef, ImageRemoved>("image/remove"),
    write::<ImageTagParams, ImageView>("image/tag"),
    write::<ImagePullParams, ImageView>("image/pull"),
    write::<ImagePushParams, ImagePushed>("image/push"),
    read::<ImageDiffParams, ImageDiff>("image/diff"),
    write::<BinBuildParams, BinView>("bin/build"),
    read::<BinListParams, BinList>("bin/list"),
    read::<BinRef, BinDetail>("bin/inspect"),
    write::<BinPullParams, BinView>("bin/pull"),
    write::<BinPushParams, ImagePushed>("bin/push"),
    write::<BinRef, ImageRemoved>("bin/remove"),
    write::<ProviderAddParams, ProviderView>("provider/add"),
    read::<ProviderListParams, ProviderList>("provider/list"),
    write::<ProviderRef, Done>("provider/remove"),
    read::<ProviderTestParams, ProviderTested>("provider/test"),
    read::<LineageListParams, LineageList>("lineage/list"),
    read::<LineageRef, LineageDetail>("lineage/get"),
    write::<LineageResolveParams, LineageView>("lineage/resolve"),
    read::<LineageSnapshotParams, LineageSnapshot>("lineage/snapshot"),
    read::<LineageMessagesParams, LineageMessages>("lineage/messages"),
    read::<EventListParams, EventList>("event/list"),
    read::<AttachParams, Attached>("client/attach"),
    read::<DetachParams, Done>("client/detach"),
    write::<TokenIssueParams, TokenIssued>("token/issue"),
    read::<TokenListParams, TokenList>("token/list"),
    write::<TokenRef, TokenView>("token/revoke"),
    read::<QuarantineListParams, QuarantineList>("quarantine/list"),
    write::<QuarantineRef, QuarantineView>("quarantine/retry"),
    write::<QuarantineRef, QuarantineView>("quarantine/drop"),
    write::<ShutdownParams, Done>("daemon/shutdown"),
    write::<ReapParams, Reaped>("daemon/reap"),
    write::<ReloadParams, Reloaded>("daemon/reload"),
];

/// The whole API as JSON schemas.
pub fn discover(version: &str) -> Discovery {
    Discovery {
        version: version.to_owned(),
        methods: METHODS
            .iter()
            .map(|doc| MethodSchema {
                name: doc.name.to_owned(),
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
        error_codes: CODES.iter().map(|doc| (doc.code.to_owned(), doc.meaning.to_owned())).collect(),
    }
}

fn event_schema(kind: EventKind) -> EventSchema {
    let doc = kind.doc();
    EventSchema { kind: doc.name.to_owned(), summary: doc.summary.to_owned(), data: doc.schema.to_value() }
}
