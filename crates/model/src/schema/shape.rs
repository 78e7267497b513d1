//! Whether a schema is one that can be checked: every keyword known, every value of the right type.

use serde_json::{Map, Value};

use super::{DEPTH_MAX, Pointer, SchemaError};

/// Every keyword that a schema may contain.
pub(super) const KEYWORDS: &[&str] = &[
    "type",
    "enum",
    "const",
    "properties",
    "required",
    "additionalProperties",
    "minProperties",
    "maxProperties",
    "items",
    "minItems",
    "maxItems",
    "uniqueItems",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "anyOf",
    "oneOf",
    "allOf",
    "not",
    "$ref",
    "$defs",
    "definitions",
    "title",
    "description",
    "default",
    "examples",
    "format",
    "$schema",
    "$id",
    "$comment",
    "deprecated",
    "readOnly",
    "writeOnly",
];

pub(super) const TYPES: &[&str] = &["null", "boolean", "object", "array", "number", "integer", "string"];

pub(super) fn check(root: &Value) -> Result<(), SchemaError> {
    schema(root, root, &Pointer::default(), 0)
}

fn schema(root: &Value, value: &Value, place: &Pointer, depth: usize) -> Result<(), SchemaError> {
    if depth > DEPTH_MAX {
        return Err(SchemaError::TooDeep { place: place.clone() });
    }
    let keywords = match value {
        Value::Bool(_) => return Ok(()),
        Value::Object(keywords) => keywords,
        _ => return malformed(place, "a schema is an object, `true` or `false`"),
    };
    for (keyword, value) in keywords {
        let place = place.then(keyword);
        let within = |value: &Value, place: &Pointer| schema(root, value, place, depth + 1);
        match keyword.as_str() {
            "type" => is_type(value, &place)?,
            "enum" => match value {
                Value::Array(choices) if !choices.is_empty() => {}
                _ => return malformed(&place, "expected a list of at least one value"),
            },
            "properties" | "$defs" | "definitions" => {
                let Value::Object(named) = value else {
                    return malformed(&place, "expected an object of schemas");
                };
                for (name, value) in named {
                    within(value, &place.then(name))?;
                }
            }
            "required" => match value {
                Value::Array(names) if names.iter().all(Value::is_string) => {}
                _ => return malformed(&place, "expected a list of names"),
            },
            "additionalProperties" | "items" | "not" => within(value, &place)?,
            "anyOf" | "oneOf" | "allOf" => {
                let Some(list) = value.as_array().filter(|list| !list.is_empty()) else {
                    return malformed(&place, "expected a list of at least one schema");
                };
                for (at, value) in list.iter().enumerate() {
                    within(value, &place.at(at))?;
                }
            }
            "minProperties" | "maxProperties" | "minItems" | "maxItems" | "minLength" | "maxLength"
                if !value.is_u64() =>
            {
                return malformed(&place, "expected a whole number that is not negative");
            }
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" if !value.is_number() => {
                return malformed(&place, "expected a number");
            }
            "multipleOf" if value.as_f64().is_none_or(|step| step <= 0.0) => {
                return malformed(&place, "expected a number above 0");
            }
            "uniqueItems" if !value.is_boolean() => return malformed(&place, "expected true or false"),
            "$ref" => reference(root, value, &place)?,
            known if KEYWORDS.contains(&known) => {}
            _ => {
                let (place, keyword) = (parent(&place), keyword.clone());
                return Err(SchemaError::Unsupported { place, keyword });
            }
        }
    }
    Ok(())
}

fn malformed(place: &Pointer, expected: &'static str) -> Result<(), SchemaError> {
    Err(SchemaError::Malformed { place: place.clone(), expected })
}

fn parent(place: &Pointer) -> Pointer {
    Pointer(place.0.rsplit_once('/').map_or("", |(before, _)| before).to_owned())
}

fn is_type(value: &Value, place: &Pointer) -> Result<(), SchemaError> {
    let known = |value: &Value| value.as_str().is_some_and(|name| TYPES.contains(&name));
    match value {
        // Every name is looked at for every value, so none is there twice.
        Value::Array(names) if names.len() > TYPES.len() => malformed(place, "expected each type once"),
        Value::Array(names) if !names.is_empty() && names.iter().all(known) => Ok(()),
        one if known(one) => Ok(()),
        _ => {
            malformed(place, "expected one or more of null, boolean, object, array, number, integer, string")
        }
    }
}

fn reference(root: &Value, value: &Value, place: &Pointer) -> Result<(), SchemaError> {
    let Some(target) = value.as_str() else {
        return malformed(place, "expected a reference such as `#/$defs/NAME`");
    };
    match resolve(root, target) {
        Some(_) => Ok(()),
        None => Err(SchemaError::Dangling { place: place.clone(), target: target.to_owned() }),
    }
}

/// What a reference names: the schema itself, or one of its definitions.
pub(super) fn resolve<'s>(root: &'s Value, target: &str) -> Option<&'s Value> {
    if target == "#" {
        return Some(root);
    }
    let name = target.strip_prefix("#/$defs/").map(|name| ("$defs", name));
    let (table, name) =
        name.or_else(|| target.strip_prefix("#/definitions/").map(|name| ("definitions", name)))?;
    let table: &Map<String, Value> = root.get(table)?.as_object()?;
    if !name.contains('~') {
        return table.get(name);
    }
    table.get(&name.replace("~1", "/").replace("~0", "~"))
}
