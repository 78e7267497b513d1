//! Whether a value fits a schema, and where it does not.

use serde_json::{Map, Value};

use super::shape::resolve;
use super::{Pointer, REASONS_MAX, SchemaMismatch};

/// Steps that one check may take: a schema that names itself over and over, or too many choices, ends here.
const STEPS_MAX: usize = 1_000_000;
/// Bytes of text that count as one step,
const BYTES_A_STEP: usize = 256;
/// and names or choices that do.
const NAMES_A_STEP: usize = 16;
/// More than any answer is deep, with a reference at every level.
const LEVELS_MAX: usize = 300;
const SHOWN_CHARS_MAX: usize = 60;
/// Names in an answer, and so the place of what is wrong, can be as long as the answer.
const REASON_CHARS_MAX: usize = 500;

/// Why a value does not match, or why the check was given up.
pub(super) fn misfit(root: &Value, value: &Value) -> Option<SchemaMismatch> {
    let mut check = SchemaCheck { root, steps: 0, level: 0 };
    let mut reasons = Vec::new();
    check.value(root, value, &Pointer::default(), &mut reasons);
    let gave_up = check.is_spent();
    if gave_up {
        reasons.push("checking the answer against the schema takes too long".to_owned());
    }
    if reasons.is_empty() {
        return None;
    }
    // The last reason explains why the check was given up.
    let first = reasons.len().saturating_sub(REASONS_MAX);
    let reasons = if gave_up { reasons.split_off(first) } else { reasons };
    let reasons =
        reasons.into_iter().take(REASONS_MAX).map(|reason| cut(&reason, REASON_CHARS_MAX)).collect();
    Some(SchemaMismatch { reasons, gave_up })
}

struct SchemaCheck<'s> {
    root: &'s Value,
    steps: usize,
    level: usize,
}

impl<'s> SchemaCheck<'s> {
    fn value(&mut self, schema: &'s Value, value: &Value, place: &Pointer, reasons: &mut Vec<String>) {
        // A place is copied for every value in it.
        self.spend(1 + place.0.len() / BYTES_A_STEP);
        if self.level >= LEVELS_MAX {
            self.steps = STEPS_MAX;
        }
        if self.has_budget(reasons) {
            self.level += 1;
            self.check_value(schema, value, place, reasons);
            self.level -= 1;
        }
    }

    /// Counts work in proportion to what is looked at: one keyword may name thousands of things.
    fn spend(&mut self, steps: usize) {
        self.steps = self.steps.saturating_add(steps);
    }

    fn is_spent(&self) -> bool {
        self.steps >= STEPS_MAX
    }

    fn has_budget(&self, reasons: &[String]) -> bool {
        !self.is_spent() && reasons.len() < REASONS_MAX
    }

    fn check_value(&mut self, schema: &'s Value, value: &Value, place: &Pointer, reasons: &mut Vec<String>) {
        let keywords = match schema {
            Value::Bool(true) => return,
            Value::Object(keywords) => keywords,
            _ => return reasons.push(format!("{place}: nothing is allowed here")),
        };
        if let Some(expected) = keywords.get("type").filter(|expected| !is_of_type(expected, value)) {
            let expected = expected.to_string().replace(['"', '[', ']'], "").replace(',', " or ");
            return reasons.push(format!("{place}: expected {expected}, found {}", shown(value)));
        }
        self.choices(keywords, value, place, reasons);
        self.combined(keywords, value, place, reasons);
        match value {
            Value::Object(object) => self.object(keywords, object, place, reasons),
            Value::Array(items) => self.array(keywords, items, place, reasons),
            Value::String(text) => {
                self.spend(text.len() / BYTES_A_STEP);
                length(keywords, text, place, reasons);
            }
            Value::Number(number) => amount(keywords, number, place, reasons),
            Value::Null | Value::Bool(_) => {}
        }
    }

    fn choices(
        &mut self,
        keywords: &Map<String, Value>,
        value: &Value,
        place: &Pointer,
        reasons: &mut Vec<String>,
    ) {
        let choices = keywords.get("enum").and_then(Value::as_array);
        self.spend(choices.map_or(0, |choices| {
            choices.len() / NAMES_A_STEP
                + choices.iter().map(|choice| comparison_weight(choice, value)).sum::<usize>()
        }));
        if let Some(choices) = choices.filter(|_| !self.is_spent())
            && !choices.iter().any(|choice| is_same(choice, value))
        {
            let choices: Vec<String> = choices.iter().take(REASONS_MAX).map(shown).collect();
            reasons.push(format!("{place}: expected one of {}, found {}", choices.join(", "), shown(value)));
        }
        let only = keywords.get("const");
        self.spend(only.map_or(0, |only| comparison_weight(only, value)));
        if let Some(only) = only.filter(|only| !self.is_spent() && !is_same(only, value)) {
            reasons.push(format!("{place}: expected {}, found {}", shown(only), shown(value)));
        }
    }

    fn combined(
        &mut self,
        keywords: &'s Map<String, Value>,
        value: &Value,
        place: &Pointer,
        reasons: &mut Vec<String>,
    ) {
        if let Some(target) = keywords.get("$ref").and_then(Value::as_str)
            && let Some(schema) = resolve(self.root, target)
        {
            self.spend(target.len() / BYTES_A_STEP);
            self.value(schema, value, place, reasons);
        }
        let list = |key: &str| keywords.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        for schema in list("allOf") {
            self.value(schema, value, place, reasons);
        }
        let any = list("anyOf");
        if !any.is_empty() && self.fitting(any, value, place) == 0 {
            reasons.push(format!("{place}: fits none of the {} allowed shapes", any.len()));
        }
        let one = list("oneOf");
        match self.fitting(one, value, place) {
            1 => {}
            0 if one.is_empty() => {}
            0 => reasons.push(format!("{place}: fits none of the {} allowed shapes", one.len())),
            more => reasons.push(format!("{place}: fits {more} shapes where it may fit only one")),
        }
        if let Some(schema) = keywords.get("not")
            && self.fitting(std::slice::from_ref(schema), value, place) == 1
        {
            reasons.push(format!("{place}: has a shape that is not allowed"));
        }
    }

    fn fitting(&mut self, schemas: &'s [Value], value: &Value, place: &Pointer) -> usize {
        let mut fitting = 0;
        for schema in schemas {
            if self.is_spent() {
                break;
            }
            let mut reasons = Vec::new();
            self.value(schema, value, place, &mut reasons);
            fitting += usize::from(reasons.is_empty());
        }
        fitting
    }

    fn object(
        &mut self,
        keywords: &'s Map<String, Value>,
        object: &Map<String, Value>,
        place: &Pointer,
        reasons: &mut Vec<String>,
    ) {
        let required = keywords.get("required").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        self.spend((required.len() + object.len()) / NAMES_A_STEP);
        for name in required.iter().filter_map(Value::as_str) {
            if !self.has_budget(reasons) {
                break;
            }
            if !object.contains_key(name) {
                reasons.push(format!("{place}: `{name}` is missing"));
            }
        }
        bounds(keywords, ["minProperties", "maxProperties"], object.len(), "properties", place, reasons);
        let properties = keywords.get("properties").and_then(Value::as_object);
        for (name, value) in object {
            if !self.has_budget(reasons) {
                break;
            }
            let known = properties.and_then(|properties| properties.get(name));
            match (known, keywords.get("additionalProperties")) {
                (Some(schema), _) => self.value(schema, value, &place.then(name), reasons),
                (None, Some(Value::Bool(false))) => {
                    reasons.push(format!("{place}: `{name}` is not allowed"));
                }
                (None, Some(schema)) => self.value(schema, value, &place.then(name), reasons),
                (None, None) => {}
            }
        }
    }

    fn array(
        &mut self,
        keywords: &'s Map<String, Value>,
        items: &[Value],
        place: &Pointer,
        reasons: &mut Vec<String>,
    ) {
        bounds(keywords, ["minItems", "maxItems"], items.len(), "items", place, reasons);
        if let Some(schema) = keywords.get("items") {
            for (at, item) in items.iter().enumerate() {
                if !self.has_budget(reasons) {
                    break;
                }
                self.value(schema, item, &place.at(at), reasons);
            }
        }
        if keywords.get("uniqueItems") == Some(&Value::Bool(true)) {
            // Every item is compared with every other, and none of them longer than the smaller of the two is.
            let weight: usize = items.iter().map(weight).sum();
            self.spend(items.len().saturating_mul(weight) / 2);
            let is_double = |at: usize| items[..at].iter().any(|other| is_same(other, &items[at]));
            if !self.is_spent() && (1..items.len()).any(is_double) {
                reasons.push(format!("{place}: an item is there twice"));
            }
        }
    }
}

fn length(keywords: &Map<String, Value>, text: &str, place: &Pointer, reasons: &mut Vec<String>) {
    bounds(keywords, ["minLength", "maxLength"], text.chars().count(), "characters", place, reasons);
}

fn bounds(
    keywords: &Map<String, Value>,
    [least, most]: [&str; 2],
    count: usize,
    of_what: &str,
    place: &Pointer,
    reasons: &mut Vec<String>,
) {
    let limit = |key: &str| keywords.get(key).and_then(Value::as_u64);
    if let Some(least) = limit(least).filter(|least| (count as u64) < *least) {
        reasons.push(format!("{place}: expected at least {least} {of_what}, found {count}"));
    }
    if let Some(most) = limit(most).filter(|most| count as u64 > *most) {
        reasons.push(format!("{place}: expected at most {most} {of_what}, found {count}"));
    }
}

fn amount(
    keywords: &Map<String, Value>,
    number: &serde_json::Number,
    place: &Pointer,
    reasons: &mut Vec<String>,
) {
    let Some(value) = number.as_f64() else { return };
    type NumberTest = fn(f64, f64) -> bool;
    let rules: [(&str, &str, NumberTest); 4] = [
        ("minimum", "at least", |value, limit| value >= limit),
        ("maximum", "at most", |value, limit| value <= limit),
        ("exclusiveMinimum", "more than", |value, limit| value > limit),
        ("exclusiveMaximum", "less than", |value, limit| value < limit),
    ];
    for (keyword, words, holds) in rules {
        if let Some(limit) =
            keywords.get(keyword).and_then(Value::as_f64).filter(|limit| !holds(value, *limit))
        {
            reasons.push(format!("{place}: expected {words} {limit}, found {number}"));
        }
    }
    if let Some(step) = keywords.get("multipleOf").and_then(Value::as_f64) {
        let times = value / step;
        // Of two numbers that no computer writes exactly, a millionth of a step is the same.
        if (times - times.round()).abs() > 1e-6 {
            reasons.push(format!("{place}: expected a multiple of {step}, found {number}"));
        }
    }
}

fn is_of_type(expected: &Value, value: &Value) -> bool {
    match expected {
        Value::Array(types) => types.iter().any(|one| is_of_type(one, value)),
        Value::String(name) => match name.as_str() {
            "null" => value.is_null(),
            "boolean" => value.is_boolean(),
            "object" => value.is_object(),
            "array" => value.is_array(),
            "number" => value.is_number(),
            // 1.0 is a whole number, too.
            "integer" => {
                value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
            }
            "string" => value.is_string(),
            _ => false,
        },
        _ => false,
    }
}

/// The same value: 1 and 1.0 are.
fn is_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one == other || one.as_f64() == other.as_f64(),
        (one, other) => one == other,
    }
}

/// Steps that comparing a value with one of the schema's takes: none beyond the first where their types differ.
fn comparison_weight(of_schema: &Value, value: &Value) -> usize {
    match (of_schema, value) {
        (Value::Array(_), Value::Array(_)) | (Value::Object(_), Value::Object(_)) => weight(of_schema),
        (Value::String(one), Value::String(other)) => one.len().min(other.len()) / BYTES_A_STEP,
        (_, _) => 0,
    }
}

/// Steps that looking at all of a value takes.
fn weight(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 1,
        Value::String(text) => 1 + text.len() / BYTES_A_STEP,
        Value::Array(items) => 1 + items.iter().map(weight).sum::<usize>(),
        Value::Object(object) => {
            let member = |(name, value): (&String, &Value)| name.len() / BYTES_A_STEP + weight(value);
            1 + object.iter().map(member).sum::<usize>()
        }
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Object(_) => "an object".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::String(text) => cut(&Value::from(start(text, SHOWN_CHARS_MAX)).to_string(), SHOWN_CHARS_MAX),
        plain => cut(&plain.to_string(), SHOWN_CHARS_MAX),
    }
}

/// The first `chars_max` characters of a text, or all of it.
fn start(text: &str, chars_max: usize) -> &str {
    text.char_indices().nth(chars_max).map_or(text, |(end, _)| &text[..end])
}

fn cut(text: &str, chars_max: usize) -> String {
    let shown = start(text, chars_max);
    if shown.len() < text.len() { format!("{shown}…") } else { shown.to_owned() }
}
