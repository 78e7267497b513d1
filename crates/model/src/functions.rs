//! A tool as the protocols describe it that speak of functions.

use serde::Serialize;
use serde_json::Value;

use crate::names::PlainNames;
use crate::request::ToolSpec;

#[derive(Serialize)]
pub(crate) struct FunctionTool<'a> {
    r#type: &'static str,
    function: FunctionSpec<'a>,
}

#[derive(Serialize)]
struct FunctionSpec<'a> {
    name: &'a str,
    description: &'a str,
    parameters: &'a Value,
}

impl<'a> FunctionTool<'a> {
    pub(crate) fn all(tools: &'a [ToolSpec], plain: &'a PlainNames<'a>) -> Vec<Self> {
        let of = |tool: &'a ToolSpec| FunctionSpec {
            name: plain.name(&tool.name),
            description: &tool.description,
            parameters: &tool.parameters,
        };
        tools.iter().map(|tool| Self { r#type: "function", function: of(tool) }).collect()
    }
}
