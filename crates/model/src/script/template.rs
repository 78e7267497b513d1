//! `{{input}}`, `{{tool}}`, `{{tool.2}}`, `{{tool.job_id}}`, `{{tool.2.job_id}}` and `{{turn}}` in a script's texts.

use std::borrow::Cow;
use std::cell::OnceCell;

use serde_json::Value;

/// Bytes between the braces of a placeholder. Longer text is not a placeholder.
const PLACEHOLDER_BYTES_MAX: usize = 128;

/// The text would be larger than an answer may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TemplateOverflow;

/// The bytes that one reply may still grow by. It is charged before anything is written.
#[derive(Debug)]
pub(crate) struct TemplateBudget(usize);

impl TemplateBudget {
    pub(crate) fn new(bytes: usize) -> Self {
        Self(bytes)
    }

    pub(crate) fn charge(&mut self, bytes: usize) -> Result<(), TemplateOverflow> {
        self.0 = self.0.checked_sub(bytes).ok_or(TemplateOverflow)?;
        Ok(())
    }
}

/// The values of the placeholders.
#[derive(Debug)]
pub(crate) struct Template<'a> {
    input: &'a str,
    turn: usize,
    /// The tool results of this turn, in order.
    tool_results: Vec<TemplateResult<'a>>,
}

/// A tool result, parsed as JSON at most once.
#[derive(Debug)]
struct TemplateResult<'a> {
    text: &'a str,
    json: OnceCell<Option<Value>>,
}

impl TemplateResult<'_> {
    /// The value of `key` if the result is a JSON object that has it, otherwise nothing.
    fn member(&self, key: &str) -> Cow<'_, str> {
        let json = self.json.get_or_init(|| serde_json::from_str(self.text).ok());
        match json.as_ref().and_then(|object| object.get(key)) {
            Some(Value::String(text)) => Cow::Borrowed(text),
            Some(value) => Cow::Owned(value.to_string()),
            None => Cow::Borrowed(""),
        }
    }
}

impl<'a> Template<'a> {
    pub(crate) fn new(input: &'a str, turn: usize, tool_results: &'a [String]) -> Self {
        let result = |text: &'a String| TemplateResult { text, json: OnceCell::new() };
        Self { input, turn, tool_results: tool_results.iter().map(result).collect() }
    }

    /// Fills `text` in one pass: what is put in is not looked at again. Unknown placeholders stay.
    pub(crate) fn fill(
        &self,
        text: &str,
        allowance: &mut TemplateBudget,
    ) -> Result<String, TemplateOverflow> {
        let mut filled = String::new();
        let mut write = |part: &str| {
            allowance.charge(part.len())?;
            filled.push_str(part);
            Ok(())
        };
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("{{") {
            write(before)?;
            let value = placeholder(after).and_then(|(name, tail)| Some((self.value(name)?, tail)));
            match value {
                Some((value, tail)) => {
                    write(&value)?;
                    rest = tail;
                }
                None => {
                    write("{{")?;
                    rest = after;
                }
            }
        }
        write(rest)?;
        Ok(filled)
    }

    /// Fills every string inside a JSON value.
    pub(crate) fn fill_json(
        &self,
        value: &Value,
        allowance: &mut TemplateBudget,
    ) -> Result<Value, TemplateOverflow> {
        Ok(match value {
            Value::String(text) => Value::String(self.fill(text, allowance)?),
            Value::Array(items) => {
                let items = items.iter().map(|item| self.fill_json(item, allowance));
                Value::Array(items.collect::<Result<_, _>>()?)
            }
            Value::Object(map) => {
                let members =
                    map.iter().map(|(key, value)| Ok((key.clone(), self.fill_json(value, allowance)?)));
                Value::Object(members.collect::<Result<_, _>>()?)
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        })
    }

    fn value(&self, name: &str) -> Option<Cow<'_, str>> {
        match name {
            "input" => Some(Cow::Borrowed(self.input)),
            "turn" => Some(Cow::Owned(self.turn.to_string())),
            "tool" => Some(text_of(self.tool_results.last())),
            _ => {
                let part = name.strip_prefix("tool.")?;
                if let Ok(place) = part.parse() {
                    return Some(text_of(self.result(place)));
                }
                let (result, key) = match part.split_once('.') {
                    Some((place, key)) => (self.result(place.parse().ok()?), key),
                    None => (self.tool_results.last(), part),
                };
                is_key(key).then(|| result.map_or(Cow::Borrowed(""), |result| result.member(key)))
            }
        }
    }

    /// Counted from 1.
    fn result(&self, place: usize) -> Option<&TemplateResult<'a>> {
        self.tool_results.get(place.checked_sub(1)?)
    }
}

fn text_of<'t>(result: Option<&'t TemplateResult<'_>>) -> Cow<'t, str> {
    Cow::Borrowed(result.map_or("", |result| result.text))
}

/// The name of the placeholder that begins here, and the text after it. Only a short way is searched for its end, so that
/// text full of open braces costs no more than its length.
fn placeholder(after: &str) -> Option<(&str, &str)> {
    let searched = &after.as_bytes()[..after.len().min(PLACEHOLDER_BYTES_MAX + 2)];
    let end = searched.windows(2).position(|pair| pair == b"}}")?;
    Some((after[..end].trim(), &after[end + 2..]))
}

/// What could be meant otherwise, such as `{{tool.-1}}`, is no key.
fn is_key(key: &str) -> bool {
    key.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && key.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_filled_once_and_unknown_ones_stay() {
        let results = ["one".to_owned(), "two".to_owned()];
        let template = Template::new("{{turn}}", 3, &results);
        for (text, expected) in [
            ("{{input}}", "{{turn}}"),
            ("{{ turn }}/{{tool}}/{{tool.1}}/{{tool.9}}/{{tool.0}}", "3/two/one//"),
            ("{{nope}} {{{{turn}}}} {{", "{{nope}} {{3}} {{"),
        ] {
            assert_eq!(template.fill(text, &mut TemplateBudget::new(100)).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn a_key_of_a_json_result_is_given_without_the_rest() {
        let results = [r#"{"job_id": "job_1", "code": 3, "args": ["a"]}"#, "plain", r#"{"job_id": "job_2"}"#]
            .map(str::to_owned);
        let template = Template::new("", 1, &results);
        for (text, expected) in [
            ("{{tool.job_id}} {{ tool.1.job_id }} {{tool.3.job_id}}", "job_2 job_1 job_2"),
            ("{{tool.1.code}} {{tool.1.args}}", r#"3 ["a"]"#),
            ("<{{tool.2.job_id}}{{tool.code}}{{tool.9.job_id}}>", "<>"),
            (
                "{{tool.-1}} {{tool.1.}} {{tool.a b}} {{tool.x.y}}",
                "{{tool.-1}} {{tool.1.}} {{tool.a b}} {{tool.x.y}}",
            ),
        ] {
            assert_eq!(template.fill(text, &mut TemplateBudget::new(100)).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn an_expansion_ends_at_its_allowance_before_the_text_is_written() {
        let results = ["x".repeat(300_000)];
        let template = Template::new("", 1, &results);
        let bomb = "{{tool}}".repeat(30_000);
        let mut allowance = TemplateBudget::new(1 << 20);
        assert_eq!(template.fill(&bomb, &mut allowance), Err(TemplateOverflow));
        let json = serde_json::json!([{"a": "{{tool}}"}, "{{tool}}"]);
        assert_eq!(template.fill_json(&json, &mut TemplateBudget::new(599_999)), Err(TemplateOverflow));
        assert!(template.fill_json(&json, &mut TemplateBudget::new(600_000)).is_ok());
    }

    #[test]
    fn open_braces_and_keys_of_one_result_cost_no_more_than_the_text_is_long() {
        let results = [format!(r#"{{"id": 1, "rest": "{}"}}"#, "x".repeat(1 << 20))];
        let template = Template::new("", 1, &results);
        let braces = "{{".repeat(500_000) + "}}";
        assert_eq!(template.fill(&braces, &mut TemplateBudget::new(2 << 20)).as_deref(), Ok(braces.as_str()));
        let keys = "{{tool.id}}".repeat(100_000);
        assert_eq!(template.fill(&keys, &mut TemplateBudget::new(2 << 20)), Ok("1".repeat(100_000)));
    }
}
