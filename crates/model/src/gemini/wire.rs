//! What is sent in the Gemini dialect.

use serde::Serialize;
use serde_json::{Value, json};

use super::layout::{OutgoingData, OutgoingPart, pieces};
use crate::dialect;
use crate::draft::as_object;
use crate::names::PlainNames;
use crate::provider::Provider;
use crate::request::{CallParams, ModelMessage, ModelRequest, ToolOutcome};

/// Replaces a missing signature: the call came from another model.
const NO_SIGNATURE: &str = "skip_thought_signature_validator";

pub(crate) fn body(provider: &Provider, request: &ModelRequest) -> Vec<u8> {
    let plain = PlainNames::of(request);
    let functions: Vec<FunctionDeclaration<'_>> = request
        .tools
        .iter()
        .map(|tool| FunctionDeclaration {
            name: plain.name(&tool.name),
            description: &tool.description,
            parameters_json_schema: &tool.parameters,
        })
        .collect();
    // With functions to call it takes no schema for the answer, so that the instruction alone has to ask for it.
    let schema = request.schema.as_ref().filter(|_| functions.is_empty());
    let config = config(&request.params, schema);
    dialect::json(&GeminiRequest {
        system_instruction: (!request.system.is_empty())
            .then(|| GeminiContent { role: None, parts: vec![GeminiPart::text(&request.system)] }),
        contents: contents(provider, request, &plain),
        tools: if functions.is_empty() {
            vec![]
        } else {
            vec![GeminiTools { function_declarations: functions }]
        },
        generation_config: Some(config).filter(|config| *config != GenerationConfig::default()),
    })
}

fn config<'a>(params: &'a CallParams, schema: Option<&'a Value>) -> GenerationConfig<'a> {
    GenerationConfig {
        max_output_tokens: params.max_tokens,
        temperature: params.temperature,
        top_p: params.top_p,
        top_k: params.top_k,
        presence_penalty: params.presence_penalty,
        frequency_penalty: params.frequency_penalty,
        seed: params.seed,
        stop_sequences: &params.stop,
        response_mime_type: schema.map(|_| "application/json"),
        response_json_schema: schema,
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct GeminiRequest<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    system_instruction: Option<GeminiContent<'a>>,
    contents: Vec<GeminiContent<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<GeminiTools<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    generation_config: Option<GenerationConfig<'a>>,
}

#[derive(Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct GenerationConfig<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    max_output_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_k: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    presence_penalty: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    frequency_penalty: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<i64>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    stop_sequences: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    response_mime_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_json_schema: Option<&'a Value>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct GeminiTools<'a> {
    function_declarations: Vec<FunctionDeclaration<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FunctionDeclaration<'a> {
    name: &'a str,
    description: &'a str,
    parameters_json_schema: &'a Value,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum GeminiRole {
    User,
    Model,
}

#[derive(Serialize)]
struct GeminiContent<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<GeminiRole>,
    parts: Vec<GeminiPart<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct GeminiPart<'a> {
    #[serde(flatten)]
    data: GeminiData<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thought_signature: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
enum GeminiData<'a> {
    Text(&'a str),
    FunctionCall { id: &'a str, name: &'a str, args: Value },
    FunctionResponse { id: &'a str, name: &'a str, response: Value },
}

impl<'a> GeminiPart<'a> {
    fn text(text: &'a str) -> Self {
        Self { data: GeminiData::Text(text), thought_signature: None }
    }

    fn is_response(&self) -> bool {
        matches!(self.data, GeminiData::FunctionResponse { .. })
    }
}

/// Messages joined by speaker; the results of one answer's calls stand together and alone.
fn contents<'a>(
    provider: &Provider,
    request: &'a ModelRequest,
    plain: &'a PlainNames<'a>,
) -> Vec<GeminiContent<'a>> {
    let mut contents: Vec<GeminiContent<'a>> = Vec::new();
    let mut names: Vec<(&str, &str)> = Vec::new();
    for (place, message) in request.messages.iter().enumerate() {
        let (role, parts) = match message {
            ModelMessage::User { text } => (GeminiRole::User, vec![GeminiPart::text(text)]),
            ModelMessage::Assistant { text, calls, .. } => {
                names = calls.iter().map(|call| (call.id.as_str(), call.name.as_str())).collect();
                let kept = pieces(request.thoughts(provider, place), text, calls);
                (GeminiRole::Model, parts(kept, plain, signing(request, place)))
            }
            ModelMessage::ToolResult { call_id, text, outcome } => {
                let named = names.iter().find(|(id, _)| id == call_id).map_or("", |(_, name)| name);
                let response = match outcome {
                    ToolOutcome::Succeeded => json!({ "output": text }),
                    ToolOutcome::Failed => json!({ "error": text }),
                };
                let (id, name) = (plain.id(call_id), plain.name(named));
                let data = GeminiData::FunctionResponse { id, name, response };
                (GeminiRole::User, vec![GeminiPart { data, thought_signature: None }])
            }
        };
        let Some(first) = parts.first() else { continue };
        match contents.last_mut() {
            Some(last)
                if last.role == Some(role)
                    && last.parts.first().is_some_and(|part| part.is_response() == first.is_response()) =>
            {
                last.parts.extend(parts);
            }
            Some(_) | None => contents.push(GeminiContent { role: Some(role), parts }),
        }
    }
    contents
}

/// Whether calls must be signed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SignaturePolicy {
    Demanded,
    AsTheyCame,
}

/// Models of the third generation and later refuse a call of the turn at hand without a signature.
fn signing(request: &ModelRequest, place: usize) -> SignaturePolicy {
    let older = ["gemini-1", "gemini-2", "models/gemini-1", "models/gemini-2"];
    let is_user = |message: &ModelMessage| matches!(message, ModelMessage::User { .. });
    let is_older = older.iter().any(|older| request.model.starts_with(older));
    if is_older || request.messages.iter().skip(place).any(is_user) {
        SignaturePolicy::AsTheyCame
    } else {
        SignaturePolicy::Demanded
    }
}

fn parts<'a>(
    kept: Vec<OutgoingPart<'a>>,
    plain: &'a PlainNames<'a>,
    signing: SignaturePolicy,
) -> Vec<GeminiPart<'a>> {
    let mut calls = 0;
    kept.into_iter()
        .map(|OutgoingPart { what, signature }| match what {
            OutgoingData::Text(text) => {
                GeminiPart { data: GeminiData::Text(text), thought_signature: signature }
            }
            OutgoingData::Call(call) => {
                calls += 1;
                // Of calls side by side the first alone is signed.
                let missing = signing == SignaturePolicy::Demanded && calls == 1 && signature.is_none();
                let data = GeminiData::FunctionCall {
                    id: plain.id(&call.id),
                    name: plain.name(&call.name),
                    args: as_object(&call.arguments),
                };
                let thought_signature = if missing { Some(NO_SIGNATURE.to_owned()) } else { signature };
                GeminiPart { data, thought_signature }
            }
        })
        .collect()
}
