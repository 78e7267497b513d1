//! Schemas that can be used, schemas that cannot, answers that fit and answers that do not.

use super::*;
use serde_json::json;

#[track_caller]
fn misfit(schema: Value, answer: Value) -> Vec<String> {
    let schema = Schema::new(schema).expect("a schema");
    schema.check(&answer.to_string()).err().map(|misfit| misfit.reasons).unwrap_or_default()
}

#[track_caller]
fn check(schema: Value, fits: &[Value], does_not: &[(Value, &str)]) {
    for answer in fits {
        assert_eq!(misfit(schema.clone(), answer.clone()), [""; 0], "{answer}");
    }
    for (answer, reason) in does_not {
        assert_eq!(misfit(schema.clone(), answer.clone()), [*reason], "{answer}");
    }
}

#[test]
fn types_and_choices_are_checked() {
    check(
        json!({"type": "integer"}),
        &[json!(1), json!(-3), json!(1.0)],
        &[
            (json!(1.5), "the top: expected integer, found 1.5"),
            (json!("1"), "the top: expected integer, found \"1\""),
            (json!(null), "the top: expected integer, found null"),
        ],
    );
    check(
        json!({"type": ["string", "null"]}),
        &[json!("a"), json!(null)],
        &[(json!([]), "the top: expected string or null, found a list")],
    );
    check(
        json!({"enum": ["a", 1]}),
        &[json!("a"), json!(1.0)],
        &[(json!("b"), "the top: expected one of \"a\", 1, found \"b\"")],
    );
    check(
        json!({"const": {"a": 1}}),
        &[json!({"a": 1})],
        &[(json!({"a": 2}), "the top: expected an object, found an object")],
    );
    check(json!(true), &[json!({})], &[]);
    check(json!(false), &[], &[(json!(1), "the top: nothing is allowed here")]);
}

#[test]
fn objects_and_lists_are_checked_with_the_place_of_what_is_wrong() {
    let schema = json!({"type": "object", "required": ["name"], "additionalProperties": false, "properties": {
        "name": {"type": "string", "minLength": 2, "maxLength": 3},
        "a/b": {"type": "array", "items": {"type": "number", "minimum": 0}, "maxItems": 2, "uniqueItems": true}}});
    check(
        schema,
        &[json!({"name": "éé"}), json!({"name": "abc", "a/b": [0, 1.5]})],
        &[
            (json!({}), "the top: `name` is missing"),
            (json!({"name": "a"}), "/name: expected at least 2 characters, found 1"),
            (json!({"name": "abcd"}), "/name: expected at most 3 characters, found 4"),
            (json!({"name": "ab", "x": 1}), "the top: `x` is not allowed"),
            (json!({"name": "ab", "a/b": [1, -1]}), "/a~1b/1: expected at least 0, found -1"),
            (json!({"name": "ab", "a/b": [1, 1.0]}), "/a~1b: an item is there twice"),
            (json!({"name": "ab", "a/b": [1, 2, 3]}), "/a~1b: expected at most 2 items, found 3"),
        ],
    );
    check(
        json!({"additionalProperties": {"type": "string"}, "maxProperties": 1}),
        &[json!({"x": "y"})],
        &[
            (json!({"x": 1}), "/x: expected string, found 1"),
            (json!({"x": "", "y": ""}), "the top: expected at most 1 properties, found 2"),
        ],
    );
}

#[test]
fn numbers_keep_to_their_bounds() {
    let schema = json!({"exclusiveMinimum": 0, "exclusiveMaximum": 1, "multipleOf": 0.1});
    check(
        schema,
        &[json!(0.3), json!("not a number")],
        &[
            (json!(0), "the top: expected more than 0, found 0"),
            (json!(1), "the top: expected less than 1, found 1"),
            (json!(0.25), "the top: expected a multiple of 0.1, found 0.25"),
        ],
    );
}

#[test]
fn combinations_and_references_are_followed() {
    check(
        json!({"anyOf": [{"type": "string"}, {"type": "number", "minimum": 3}]}),
        &[json!("a"), json!(3)],
        &[(json!(2), "the top: fits none of the 2 allowed shapes")],
    );
    check(
        json!({"oneOf": [{"minimum": 2}, {"maximum": 4}]}),
        &[json!(1), json!(5)],
        &[(json!(3), "the top: fits 2 shapes where it may fit only one")],
    );
    check(
        json!({"allOf": [{"minimum": 2}, {"not": {"const": 3}}]}),
        &[json!(2)],
        &[
            (json!(1), "the top: expected at least 2, found 1"),
            (json!(3), "the top: has a shape that is not allowed"),
        ],
    );
    let tree = json!({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "required": ["kids"],
        "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}}}}});
    check(tree, &[json!({"kids": [{"kids": []}]})], &[(json!({"kids": [{}]}), "/kids/0: `kids` is missing")]);
}

#[test]
fn an_answer_that_is_not_json_alone_is_reported_as_such() {
    let schema = Schema::new(json!({})).unwrap();
    for answer in ["", "Sure! {}", "{} {}", "```json\n{}\n```", "{\"a\":", "{'a': 1}"] {
        let misfit = schema.check(answer).expect_err(answer);
        assert!(misfit.to_string().starts_with("it is not JSON, or not JSON alone ("), "{misfit}");
    }
    assert_eq!(schema.check(" {\"a\": 1}\n"), Ok(json!({"a": 1})));
}

#[test]
fn only_the_first_reasons_are_reported() {
    let answer: Vec<u32> = (0..1000).collect();
    let reasons = misfit(json!({"items": {"type": "string"}}), json!(answer));
    assert_eq!((reasons.len(), reasons[0].as_str()), (REASONS_MAX, "/0: expected string, found 0"));
    let long = misfit(json!({"const": 1}), json!("x".repeat(1000)));
    assert!(long[0].len() < 120, "{long:?}");
}

#[test]
fn a_schema_that_cannot_be_checked_is_refused_by_name() {
    for (schema, message) in [
        (json!({"type": "text"}), "/type of the schema: expected one or more of null, boolean"),
        (
            json!({"properties": {"a": {"pattern": "^a"}}}),
            "/properties/a of the schema: the keyword `pattern` is not",
        ),
        (json!({"if": {}}), "the top of the schema: the keyword `if` is not supported"),
        (json!({"required": "a"}), "/required of the schema: expected a list of names"),
        (json!({"enum": []}), "/enum of the schema: expected a list of at least one value"),
        (json!({"items": [1]}), "/items of the schema: a schema is an object, `true` or `false`"),
        (json!({"minLength": -1}), "/minLength of the schema: expected a whole number"),
        (json!({"multipleOf": 0}), "/multipleOf of the schema: expected a number above 0"),
        (json!({"anyOf": []}), "/anyOf of the schema: expected a list of at least one schema"),
        (json!({"$ref": "#/$defs/no"}), "/$ref of the schema: `#/$defs/no` is not defined"),
        (
            json!({"$ref": "https://example.com/s"}),
            "/$ref of the schema: `https://example.com/s` is not defined",
        ),
        (json!(3), "the top of the schema: a schema is an object"),
    ] {
        let error = Schema::new(schema.clone()).expect_err("a refusal");
        assert!(error.to_string().starts_with(message), "{error} for {schema}");
    }
    assert!(Schema::parse("{").unwrap_err().to_string().starts_with("the schema is not JSON"));
    assert_eq!(Schema::parse(&" ".repeat(SCHEMA_BYTES_MAX + 1)), Err(SchemaError::TooLarge));
    let deep = "{\"items\":".repeat(DEPTH_MAX + 2) + "true" + &"}".repeat(DEPTH_MAX + 2);
    assert!(matches!(Schema::parse(&deep), Err(SchemaError::TooDeep { .. })));
}

#[test]
fn a_schema_that_leads_to_itself_without_reaching_another_value_is_refused() {
    for endless in [
        json!({"$ref": "#"}),
        json!({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}),
        json!({"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {
            "a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"not": {"$ref": "#/$defs/a"}}}}),
    ] {
        let refused = Schema::new(endless.clone());
        assert!(matches!(refused, Err(SchemaError::TooLongChain { .. })), "{endless}: {refused:?}");
    }
    // Through another value it may: a tree ends where the answer does.
    let tree = json!({"type": "object", "additionalProperties": {"$ref": "#"}});
    check(tree, &[json!({"a": {"b": {}}})], &[(json!({"a": 1}), "/a: expected object, found 1")]);
}

/// Each definition applies the one before it this many times.
fn nested(levels: usize, times: usize) -> Value {
    let level = |at: usize| match at {
        0 => json!({"type": ["string", "null"]}),
        _ => json!({"allOf": vec![json!({"$ref": format!("#/$defs/d{}", at - 1)}); times]}),
    };
    let defs: serde_json::Map<String, Value> = (0..=levels).map(|at| (format!("d{at}"), level(at))).collect();
    json!({"$ref": format!("#/$defs/d{levels}"), "$defs": defs})
}

#[test]
fn nested_combinations_that_multiply_are_refused_by_their_number_before_any_check() {
    let small = nested(30, 2);
    assert!(small.to_string().len() < 6_000);
    let refused = Schema::new(small).expect_err("two to the thirtieth");
    assert!(matches!(refused, SchemaError::TooManySubschemas { .. }), "{refused:?}");
    assert!(refused.hint().is_some());
    assert!(matches!(Schema::new(nested(100, 1)), Err(SchemaError::TooLongChain { .. })));
    let fine = nested(10, 2);
    check(fine, &[json!("a"), json!(null)], &[]);
}

#[test]
fn a_type_is_named_once_since_every_value_is_compared_with_each() {
    let many = Schema::new(json!({"type": vec!["string"; 500]})).expect_err("a refusal");
    assert_eq!(many.to_string(), "/type of the schema: expected each type once");
}

#[test]
fn a_check_that_takes_too_long_is_given_up_however_much_one_keyword_names() {
    let many = |count: usize, item: Value| Value::Array(vec![item; count]);
    let names: Vec<String> = (0..20_000).map(|at| format!("n{at}")).collect();
    for (name, schema, answer) in [
        ("required", json!({"items": {"not": {"required": names}}}), many(200_000, json!({}))),
        ("enum", json!({"items": {"enum": names}}), many(100_000, json!("n19999"))),
        ("length", json!({"allOf": many(8_000, json!({"minLength": 1}))}), json!("x".repeat(4_000_000))),
        ("const", json!({"items": {"const": many(10_000, json!(1))}}), many(1_000, many(10_000, json!(1)))),
        (
            "enum of long texts",
            json!({"items": {"enum": (0..50).map(|at| format!("{}{at:02}", "x".repeat(4_000))).collect::<Vec<_>>()}}),
            many(2_000, json!("x".repeat(4_000) + "49")),
        ),
        ("unique", json!({"uniqueItems": true}), many(500, many(10_000, json!(1)))),
        (
            "references",
            json!({"items": {"$ref": format!("#/$defs/{}", "n".repeat(100_000))},
                "$defs": {"n".repeat(100_000): {"type": "integer"}}}),
            many(10_000, json!(1)),
        ),
        (
            "properties",
            json!({"anyOf": many(2_000, json!({"properties": {}, "minProperties": 999_999_999}))}),
            Value::Object((0..50_000).map(|at| (at.to_string(), json!(1))).collect()),
        ),
    ] {
        let misfit = Schema::new(schema).unwrap().check(&answer.to_string()).expect_err(name);
        assert!(misfit.gave_up, "{name}: {misfit:?}");
        assert!(misfit.to_string().contains("takes too long"), "{name}: {misfit:?}");
    }
    let long_names = json!({"k".repeat(1_000_000): many(100_000, json!(1))});
    check(json!({"additionalProperties": {"items": {"type": "integer"}}}), &[long_names], &[]);
}

#[test]
fn a_reason_is_short_however_long_the_names_in_an_answer_are() {
    let name = "k".repeat(500_000);
    for schema in [json!({"additionalProperties": false}), json!({"additionalProperties": {"type": "null"}})]
    {
        let reasons = misfit(schema, json!({name.as_str(): 1}));
        assert!(reasons[0].chars().count() <= 501 && reasons[0].ends_with('…'), "{}", reasons[0].len());
    }
}

#[test]
fn a_schema_that_was_read_already_may_not_be_larger_than_one_that_was_not() {
    let large = json!({"description": "x".repeat(SCHEMA_BYTES_MAX)});
    assert_eq!(Schema::new(large), Err(SchemaError::TooLarge));
    assert!(Schema::new(json!({"description": "x".repeat(SCHEMA_BYTES_MAX - 18)})).is_ok());
}
