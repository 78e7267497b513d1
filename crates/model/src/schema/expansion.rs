//! How many subschemas apply to one value once every reference is followed.
//!
//! `allOf`, `anyOf`, `oneOf`, `not` and `$ref` apply to the value that their own schema applies to. Nested, they multiply: a
//! few lines can ask for billions of checks of one value. Such a schema is refused before anything is checked by it.

use std::collections::HashMap;

use serde_json::Value;

use super::shape::resolve;
use super::{CHAIN_MAX, Pointer, SUBSCHEMAS_MAX, SchemaError};

/// A schema whose shape was checked before.
pub(super) fn check(root: &Value) -> Result<(), SchemaError> {
    SchemaExpansion { root, known: HashMap::new() }.walk(root, &Pointer::default())
}

struct SchemaExpansion<'s> {
    root: &'s Value,
    /// By address: each subschema of the document is counted once.
    known: HashMap<*const Value, SubschemaCount>,
}

#[derive(Debug, Clone, Copy)]
enum SubschemaCount {
    /// It is being counted: reaching it again means a cycle.
    Open,
    Known {
        /// Subschemas that apply to one value, this one included.
        subschemas: usize,
        /// The longest way through them.
        chain: usize,
    },
}

impl<'s> SchemaExpansion<'s> {
    /// Counts every subschema of the document: a value may come to any of them.
    fn walk(&mut self, schema: &'s Value, place: &Pointer) -> Result<(), SchemaError> {
        let Value::Object(keywords) = schema else { return Ok(()) };
        self.count(schema, 0, place)?;
        for (keyword, value) in keywords {
            let place = place.then(keyword);
            match (keyword.as_str(), value) {
                ("properties" | "$defs" | "definitions", Value::Object(named)) => {
                    for (name, schema) in named {
                        self.walk(schema, &place.then(name))?;
                    }
                }
                ("anyOf" | "oneOf" | "allOf", Value::Array(list)) => {
                    for (at, schema) in list.iter().enumerate() {
                        self.walk(schema, &place.at(at))?;
                    }
                }
                ("additionalProperties" | "items" | "not", schema) => self.walk(schema, &place)?,
                (_, _) => {}
            }
        }
        Ok(())
    }

    fn count(
        &mut self,
        schema: &'s Value,
        above: usize,
        place: &Pointer,
    ) -> Result<(usize, usize), SchemaError> {
        let too_long = || SchemaError::TooLongChain { place: place.clone() };
        match self.known.get(&std::ptr::from_ref(schema)) {
            Some(SubschemaCount::Open) => return Err(too_long()),
            Some(SubschemaCount::Known { chain, .. }) if above + chain > CHAIN_MAX => return Err(too_long()),
            Some(SubschemaCount::Known { subschemas, chain }) => return Ok((*subschemas, *chain)),
            None if above >= CHAIN_MAX => return Err(too_long()),
            None => {}
        }
        self.known.insert(std::ptr::from_ref(schema), SubschemaCount::Open);
        let (mut subschemas, mut chain) = (1_usize, 1);
        for next in self.applied(schema) {
            let (more, length) = self.count(next, above + 1, place)?;
            (subschemas, chain) = (subschemas.saturating_add(more), chain.max(1 + length));
            if subschemas > SUBSCHEMAS_MAX {
                return Err(SchemaError::TooManySubschemas { place: place.clone() });
            }
        }
        self.known.insert(std::ptr::from_ref(schema), SubschemaCount::Known { subschemas, chain });
        Ok((subschemas, chain))
    }

    /// The schemas that apply to the same value as this one.
    fn applied(&self, schema: &'s Value) -> Vec<&'s Value> {
        let Value::Object(keywords) = schema else { return Vec::new() };
        let reference = keywords.get("$ref").and_then(Value::as_str);
        let mut applied: Vec<&Value> =
            reference.and_then(|target| resolve(self.root, target)).into_iter().collect();
        applied.extend(keywords.get("not"));
        for list in ["allOf", "anyOf", "oneOf"] {
            applied.extend(keywords.get(list).and_then(Value::as_array).into_iter().flatten());
        }
        applied
    }
}
