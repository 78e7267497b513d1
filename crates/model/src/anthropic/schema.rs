//! A schema as this protocol takes it: it knows fewer keywords than JSON Schema has, and refuses the others.

use serde_json::{Map, Value};

/// Keywords that narrow a value further; without them the answer is checked only after it came.
const LEFT_OUT: &[&str] = &[
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "pattern",
    "maxItems",
    "uniqueItems",
    "minProperties",
    "maxProperties",
];
/// Keywords that it has no place for, and that change the meaning when they are left out.
const IN_THE_WAY: &[&str] = &["oneOf", "not", "prefixItems"];
/// Models that were made before it could.
const WITHOUT: &[&str] =
    &["claude-2", "claude-3", "claude-opus-4-0", "claude-opus-4-2", "claude-sonnet-4-0", "claude-sonnet-4-2"];

/// The schema for `model`, or nothing if the protocol cannot express it: then only the instruction requests it.
pub(crate) fn schema_for(model: &str, schema: &Value) -> Option<Value> {
    if WITHOUT.iter().any(|older| model.starts_with(older)) {
        return None;
    }
    narrowed(schema)
}

fn narrowed(schema: &Value) -> Option<Value> {
    let Value::Object(schema) = schema else { return None };
    let mut told = Map::new();
    for (key, value) in schema {
        if LEFT_OUT.contains(&key.as_str()) || key == "minItems" && value.as_u64() > Some(1) {
            continue;
        }
        if IN_THE_WAY.contains(&key.as_str()) || key == "$ref" && value.as_str() == Some("#") {
            return None;
        }
        let value = match (key.as_str(), value) {
            ("properties" | "$defs" | "definitions", Value::Object(schemas)) => {
                let each = schemas.iter().map(|(name, schema)| Some((name.clone(), narrowed(schema)?)));
                Value::Object(each.collect::<Option<Map<_, _>>>()?)
            }
            ("anyOf" | "allOf", Value::Array(schemas)) => {
                Value::Array(schemas.iter().map(narrowed).collect::<Option<Vec<_>>>()?)
            }
            ("items", schema) => narrowed(schema)?,
            // An object must be closed, or the protocol cannot express it.
            ("additionalProperties", Value::Bool(false)) => Value::Bool(false),
            ("additionalProperties", _) => return None,
            (_, value) => value.clone(),
        };
        told.insert(key.clone(), value);
    }
    let is_object = told.get("type") == Some(&Value::from("object")) || told.contains_key("properties");
    if is_object {
        told.insert("additionalProperties".to_owned(), Value::Bool(false));
    }
    Some(Value::Object(told))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_the_protocol_lacks_is_left_out_and_what_it_cannot_say_is_not_reported() {
        let schema = json!({"type": "object", "required": ["n"], "properties": {
            "n": {"type": "integer", "minimum": 1, "description": "how many"},
            "list": {"type": "array", "minItems": 2, "items": {"type": "object", "properties": {}}}}});
        let expected = json!({"type": "object", "required": ["n"], "additionalProperties": false, "properties": {
            "n": {"type": "integer", "description": "how many"},
            "list": {"type": "array",
                "items": {"type": "object", "properties": {}, "additionalProperties": false}}}});
        assert_eq!(schema_for("claude-opus-5", &schema), Some(expected));
        assert_eq!(schema_for("claude-3-5-haiku-latest", &schema), None);
        for open in [
            json!({"type": "object", "additionalProperties": {"type": "string"}}),
            json!({"anyOf": [{"oneOf": []}]}),
            json!({"type": "object", "properties": {"self": {"$ref": "#"}}}),
            json!(true),
        ] {
            assert_eq!(schema_for("claude-opus-5", &open), None, "{open}");
        }
    }
}
