//! `{{input}}`, `{{tool}}`, `{{tool.2}}`, `{{tool.job_id}}`, `{{tool.2.job_id}}` and `{{turn}}` in a script's texts.

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
            "tool" => Some(self.newest().to_owned()),
            _ => {
                let part = name.strip_prefix("tool.")?;
                if let Ok(place) = part.parse() {
                    return Some(self.result(place).to_owned());
                }
                let (result, key) = match part.split_once('.') {
                    Some((place, key)) => (self.result(place.parse().ok()?), key),
                    None => (self.newest(), part),
                };
                is_key(key).then(|| member(result, key))
            }
        }
    }

    fn newest(&self) -> &str {
        self.tool_results.last().copied().unwrap_or_default()
    }

    /// Counted from 1.
    fn result(&self, place: usize) -> &str {
        let result = place.checked_sub(1).and_then(|place| self.tool_results.get(place));
        result.copied().unwrap_or_default()
    }
}

/// What could be meant otherwise, such as `{{tool.-1}}`, is no key.
fn is_key(key: &str) -> bool {
    key.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && key.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

/// What `key` has in a result that is a JSON object; nothing where it is none or has no such key.
fn member(result: &str, key: &str) -> String {
    let object = serde_json::from_str::<serde_json::Value>(result).ok();
    match object.as_ref().and_then(|object| object.get(key)) {
        Some(serde_json::Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
        None => String::new(),
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

    #[test]
    fn a_key_of_a_json_result_is_given_without_the_rest() {
        let results = [r#"{"job_id": "job_1", "code": 3, "args": ["a"]}"#, "plain", r#"{"job_id": "job_2"}"#];
        let template = Template { input: "", turn: 1, tool_results: &results };
        for (text, expected) in [
            ("{{tool.job_id}} {{ tool.1.job_id }} {{tool.3.job_id}}", "job_2 job_1 job_2"),
            ("{{tool.1.code}} {{tool.1.args}}", r#"3 ["a"]"#),
            ("<{{tool.2.job_id}}{{tool.code}}{{tool.9.job_id}}>", "<>"),
            (
                "{{tool.-1}} {{tool.1.}} {{tool.a b}} {{tool.x.y}}",
                "{{tool.-1}} {{tool.1.}} {{tool.a b}} {{tool.x.y}}",
            ),
        ] {
            assert_eq!(template.fill(text), expected, "{text}");
        }
    }
}
