//! The check of answers against another implementation of the standard.

use lodge_model::schema::Schema;
use serde_json::{Map, Value, json};

/// Random choices from a seed, so that a failure is reproducible.
struct SeededChoices(u64);

impl SeededChoices {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn value(&mut self, depth: u32) -> Value {
        match self.below(if depth == 0 { 5 } else { 7 }) {
            0 => Value::Null,
            1 => json!(self.below(2) == 0),
            2 => json!(self.below(5)),
            3 => json!(self.below(10) as f64 / 2.0),
            4 => json!(["", "a", "ab", "é", "abc"][self.below(5) as usize]),
            5 => (0..self.below(4)).map(|_| self.value(depth - 1)).collect(),
            _ => Value::Object((0..self.below(4)).map(|_| (self.name(), self.value(depth - 1))).collect()),
        }
    }

    fn name(&mut self) -> String {
        ["a", "b", "c"][self.below(3) as usize].to_owned()
    }

    fn schema(&mut self, depth: u32) -> Value {
        if self.below(12) == 0 {
            return json!(self.below(4) != 0);
        }
        let mut schema = Map::new();
        for _ in 0..=self.below(3) {
            let (keyword, value) = self.keyword(depth);
            schema.insert(keyword.to_owned(), value);
        }
        Value::Object(schema)
    }

    fn schemas(&mut self, depth: u32) -> Value {
        (0..=self.below(3)).map(|_| self.schema(depth)).collect()
    }

    fn keyword(&mut self, depth: u32) -> (&'static str, Value) {
        let types = ["null", "boolean", "object", "array", "number", "integer", "string"];
        let inner = depth.saturating_sub(1);
        match self.below(if depth == 0 { 14 } else { 21 }) {
            0 | 1 => ("type", json!(types[self.below(7) as usize])),
            2 => ("type", json!([types[self.below(3) as usize], types[3 + self.below(4) as usize]])),
            3 => ("enum", json!([self.value(1), self.value(1)])),
            4 => ("const", self.value(1)),
            5 => ("required", json!([self.name()])),
            6 => (["minItems", "maxItems"][self.below(2) as usize], json!(self.below(4))),
            7 => (["minLength", "maxLength"][self.below(2) as usize], json!(self.below(4))),
            8 => (["minimum", "maximum"][self.below(2) as usize], json!(self.below(6))),
            9 => (["exclusiveMinimum", "exclusiveMaximum"][self.below(2) as usize], json!(self.below(6))),
            10 => ("multipleOf", json!([0.5, 1.0, 2.0][self.below(3) as usize])),
            11 => ("uniqueItems", json!(true)),
            12 => (["minProperties", "maxProperties"][self.below(2) as usize], json!(self.below(4))),
            13 => ("description", json!("words")),
            14 | 15 => {
                ("properties", json!({self.name(): self.schema(inner), self.name(): self.schema(inner)}))
            }
            16 => ("additionalProperties", self.schema(inner)),
            17 => ("items", self.schema(inner)),
            18 => ("anyOf", self.schemas(inner)),
            19 => (["oneOf", "allOf"][self.below(2) as usize], self.schemas(inner)),
            _ => ("not", self.schema(inner)),
        }
    }
}

#[test]
fn answers_fit_exactly_when_another_checker_says_so() {
    let (mut fits, mut misfits) = (0, 0);
    for seed in 0..4000 {
        let mut dice = SeededChoices(seed);
        let schema = dice.schema(3);
        let ours = Schema::new(schema.clone()).unwrap_or_else(|error| panic!("{error}: {schema}"));
        let theirs = jsonschema::draft202012::new(&schema).expect("a schema");
        for _ in 0..10 {
            let value = dice.value(3);
            let fit = ours.check(&value.to_string());
            assert_eq!(
                fit.is_ok(),
                theirs.is_valid(&value),
                "seed {seed}: {value} against {schema}: {fit:?}"
            );
            match fit {
                Ok(_) => fits += 1,
                Err(misfit) => {
                    assert!(!misfit.reasons.is_empty() && misfit.reasons.len() <= 8, "{misfit:?}");
                    misfits += 1;
                }
            }
        }
    }
    assert!(fits > 3000 && misfits > 3000, "{fits} fit and {misfits} do not");
}
