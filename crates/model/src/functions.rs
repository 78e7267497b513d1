//! A tool as the protocols describe it that speak of functions.

use serde::Serialize;
use serde_json::Value;

use crate::names::Plain;
use crate::request::Tool;

#[derive(Serialize)]
pub(crate) struct FunctionTool<'a> {
    r#type: &'static str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    description: &'a str,
    parameters: &'a Value,
}

impl<'a> FunctionTool<'a> {
    pub(crate) fn all(tools: &'a [Tool], plain: &'a Plain<'a>) -> Vec<Self> {
        let of = |tool: &'a Tool| Function {
            name: plain.name(&tool.name),
            description: &tool.description,
            parameters: &tool.parameters,
        };
        tools.iter().map(|tool| Self { r#type: "function", function: of(tool) }).collect()
    }
}
