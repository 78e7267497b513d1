//! What the daemon asks of a runtime, and the replies.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::AnswerCall;

/// The params of one method that the daemon calls.
pub trait DaemonMethod: Serialize {
    const METHOD: &'static str;
    type Reply;
}

impl DaemonMethod for InitializeRequest {
    const METHOD: &'static str = "initialize";
    type Reply = InitializeReply;
}

impl DaemonMethod for TurnRunRequest {
    const METHOD: &'static str = "turn/run";
    type Reply = EmptyReply;
}

impl DaemonMethod for TurnInterruptRequest {
    const METHOD: &'static str = "turn/interrupt";
    type Reply = EmptyReply;
}

impl DaemonMethod for PingRequest {
    const METHOD: &'static str = "ping";
    type Reply = EmptyReply;
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InitializeRequest {
    /// The highest version that the daemon speaks.
    pub protocol: u64,
    /// Grows with each daemon.
    pub epoch: u64,
    pub agent: AgentIdentity,
    pub root: Option<PathBuf>,
    #[serde(default)]
    pub configs: BTreeMap<String, String>,
    #[serde(default)]
    pub context: Vec<ContextFile>,
    #[serde(default)]
    pub tools: Vec<ToolDeclaration>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentIdentity {
    pub id: String,
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub model: String,
}

/// A file of the system prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContextFile {
    pub name: String,
    /// Relative to `<root>/etc/context`.
    pub file: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// A program that the agent may run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolDeclaration {
    pub name: String,
    #[serde(default)]
    pub description: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<String>,
}

/// A runtime is ready when it has sent this reply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InitializeReply {
    #[serde(default)]
    pub protocol: u64,
    #[serde(default)]
    pub runtime: RuntimeName,
    pub context: SystemPrompt,
    #[serde(default)]
    pub tools: Vec<ToolOffer>,
    #[serde(default)]
    pub params: ModelParams,
    #[serde(default)]
    pub window: WindowSize,
    #[serde(default)]
    pub turns: Vec<RunningTurn>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RuntimeName {
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub version: String,
}

/// Sent once, and named by its id from then on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SystemPrompt {
    /// The same for the same text.
    pub id: String,
    pub system: String,
}

/// A tool as the model sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolOffer {
    pub name: String,
    #[serde(default)]
    pub description: String,
    /// A JSON schema.
    pub parameters: Value,
}

/// For every model call. What is unset is not sent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelParams {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub presence_penalty: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frequency_penalty: Option<f64>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WindowSize {
    #[serde(default)]
    pub max_messages: u64,
}

/// A turn that runs in this process already.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunningTurn {
    pub turn: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnRunRequest {
    pub turn: String,
    #[serde(default)]
    pub session: String,
    /// The position of the turn in its session, from 1.
    pub number: u32,
    /// The step of the next model call.
    pub step: u32,
    /// Calls of the last stored answer that have no result yet.
    #[serde(default)]
    pub calls: Vec<AnswerCall>,
    #[serde(default)]
    pub epoch: ConversationEpoch,
}

/// The size of the conversation since it was last compacted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConversationEpoch {
    #[serde(default = "first")]
    pub number: u32,
    pub from_turn: u32,
    #[serde(default)]
    pub messages: u64,
    #[serde(default)]
    pub bytes: u64,
    /// The bytes of the newest turns, this one last.
    #[serde(default)]
    pub turns: Vec<u64>,
}

impl Default for ConversationEpoch {
    /// A daemon that sends no epoch has never compacted.
    fn default() -> Self {
        ConversationEpoch { number: 1, from_turn: 1, messages: 0, bytes: 0, turns: Vec::new() }
    }
}

fn first() -> u32 {
    1
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnInterruptRequest {
    pub turn: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PingRequest {}

/// The `{}` of a request that is simply done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EmptyReply {}
