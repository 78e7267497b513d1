//! Names and ids in the letters that every protocol takes.
//!
//! A tool's name may have a dot, a conversation may have begun with another provider, whose ids have other letters, and
//! a model may call a tool by a name that no tool has. All of them must still be sent, and calls must still find their
//! tools, and results their calls.

use std::collections::{HashMap, HashSet};

use crate::request::{ModelMessage, ModelRequest};

const NAME_BYTES_MAX: usize = 64;

/// What the odd ids and names of a request are written as; all others stay.
#[derive(Debug)]
pub(crate) struct PlainNames<'a> {
    ids: NameTable<'a>,
    names: NameTable<'a>,
}

impl<'a> PlainNames<'a> {
    pub(crate) fn of(request: &'a ModelRequest) -> Self {
        let calls = request.messages.iter().flat_map(|message| match message {
            ModelMessage::Assistant { calls, .. } => calls.as_slice(),
            ModelMessage::User { .. } | ModelMessage::ToolResult { .. } => &[],
        });
        let tools = request.tools.iter().map(|tool| tool.name.as_str());
        Self {
            ids: NameTable::of(calls.clone().map(|call| call.id.as_str()), usize::MAX),
            names: NameTable::of(tools.chain(calls.map(|call| call.name.as_str())), NAME_BYTES_MAX),
        }
    }

    pub(crate) fn id<'s>(&'s self, id: &'s str) -> &'s str {
        self.ids.get(id)
    }

    pub(crate) fn name<'s>(&'s self, name: &'s str) -> &'s str {
        self.names.get(name)
    }

    /// The tool that a model means: the protocol may not allow the tool's own name.
    pub(crate) fn tool_name<'s>(&'s self, name: &'s str) -> &'s str {
        self.names.odd.iter().find(|(_, written)| *written == name).map_or(name, |(odd, _)| odd)
    }
}

#[derive(Debug)]
struct NameTable<'a> {
    odd: HashMap<&'a str, String>,
}

impl<'a> NameTable<'a> {
    /// No two of them are written alike.
    fn of(all: impl Iterator<Item = &'a str> + Clone, bytes_max: usize) -> Self {
        let fits = |text: &&str| is_plain(text) && text.len() <= bytes_max;
        let mut taken: HashSet<String> = all.clone().filter(fits).map(str::to_owned).collect();
        let mut odd = HashMap::new();
        for text in all.filter(|text| !fits(text)) {
            if odd.contains_key(text) {
                continue;
            }
            let base = written(text);
            let free = (1_u64..).map(|number| {
                let end = if number == 1 { String::new() } else { format!("_{number}") };
                let room = bytes_max.saturating_sub(end.len()).min(base.len());
                format!("{}{end}", &base[..room])
            });
            if let Some(plain) = free.into_iter().find(|plain| !taken.contains(plain)) {
                taken.insert(plain.clone());
                odd.insert(text, plain);
            }
        }
        Self { odd }
    }

    fn get<'s>(&'s self, text: &'s str) -> &'s str {
        self.odd.get(text).map_or(text, String::as_str)
    }
}

fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(is_plain_byte)
}

fn is_plain_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

fn written(text: &str) -> String {
    let plain: String =
        text.chars().map(|c| if u8::try_from(c).is_ok_and(is_plain_byte) { c } else { '_' }).collect();
    if plain.is_empty() { "_".to_owned() } else { plain }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{ToolCall, ToolSpec};

    #[test]
    fn odd_ids_become_plain_ones_that_nobody_else_has() {
        let call =
            |id: &str, name: &str| ToolCall { id: id.into(), name: name.into(), arguments: String::new() };
        let long = "n".repeat(NAME_BYTES_MAX + 1);
        let calls =
            vec![call("a.2", "sh"), call("a_2", "né"), call("a:2", ""), call("", &long), call("a.2", "sh")];
        let request = ModelRequest::new("m", vec![ModelMessage::assistant("", calls)]);
        let plain = PlainNames::of(&request);
        let ids: Vec<&str> = ["a.2", "a_2", "a:2", "", "other"].iter().map(|id| plain.id(id)).collect();
        assert_eq!(ids, ["a_2_2", "a_2", "a_2_3", "_", "other"]);
        assert_eq!((plain.name("sh"), plain.name("né"), plain.name("")), ("sh", "n_", "_"));
        assert_eq!(plain.name(&long).len(), NAME_BYTES_MAX);
    }

    #[test]
    fn a_tool_with_an_odd_name_is_found_by_the_name_that_the_model_got() {
        let tool = |name: &str| ToolSpec {
            name: name.into(),
            description: String::new(),
            parameters: serde_json::Value::Null,
        };
        let tools = ["python3.11", "python3_11", "python3:11", "sh"].map(tool).to_vec();
        let request = ModelRequest { tools, ..ModelRequest::new("m", vec![]) };
        let plain = PlainNames::of(&request);
        let told: Vec<&str> = request.tools.iter().map(|tool| plain.name(&tool.name)).collect();
        assert_eq!(told, ["python3_11_2", "python3_11", "python3_11_3", "sh"]);
        for (tool, told) in request.tools.iter().zip(told) {
            assert_eq!(plain.tool_name(told), tool.name);
        }
        assert_eq!(plain.tool_name("unheard of"), "unheard of");
    }
}
