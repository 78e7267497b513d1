//! `{{input}}`, `{{tool}}`, `{{tool.2}}` and `{{turn}}` in a script's texts.

/// What the placeholders stand for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Template<'a> {
    pub(crate) input: &'a str,
    pub(crate) turn: usize,
    /// Of this turn, in order.
    pub(crate) tool_results: &'a [&'a str],
}

impl Template<'_> {
    /// Fills `text` in one pass: what is put in is not looked at again. Unknown placeholders stay.
    pub(crate) fn fill(&self, text: &str) -> String {
        let mut filled = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("{{") {
            filled.push_str(before);
            let value =
                after.split_once("}}").and_then(|(name, tail)| Some((self.value(name.trim())?, tail)));
            match value {
                Some((value, tail)) => {
                    filled.push_str(&value);
                    rest = tail;
                }
                None => {
                    filled.push_str("{{");
                    rest = after;
                }
            }
        }
        filled.push_str(rest);
        filled
    }

    /// Fills every string inside a JSON value.
    pub(crate) fn fill_json(&self, value: &serde_json::Value) -> serde_json::Value {
        use serde_json::Value;
        match value {
            Value::String(text) => Value::String(self.fill(text)),
            Value::Array(items) => items.iter().map(|item| self.fill_json(item)).collect(),
            Value::Object(map) => {
                map.iter().map(|(key, value)| (key.clone(), self.fill_json(value))).collect()
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        }
    }

    fn value(&self, name: &str) -> Option<String> {
        match name {
            "input" => Some(self.input.to_owned()),
            "turn" => Some(self.turn.to_string()),
            "tool" => Some(self.tool_results.last().copied().unwrap_or_default().to_owned()),
            _ => {
                let place: usize = name.strip_prefix("tool.")?.parse().ok()?;
                let result = place.checked_sub(1).and_then(|place| self.tool_results.get(place));
                Some(result.copied().unwrap_or_default().to_owned())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_filled_once_and_unknown_ones_stay() {
        let template = Template { input: "{{turn}}", turn: 3, tool_results: &["one", "two"] };
        for (text, expected) in [
            ("{{input}}", "{{turn}}"),
            ("{{ turn }}/{{tool}}/{{tool.1}}/{{tool.9}}/{{tool.0}}", "3/two/one//"),
            ("{{nope}} {{{{turn}}}} {{", "{{nope}} {{3}} {{"),
        ] {
            assert_eq!(template.fill(text), expected, "{text}");
        }
    }
}
