//! How shapes are declared: every field is public, and every shape has a schema.

macro_rules! shapes {
    ($($(#[$meta:meta])* pub struct $name:ident { $($(#[$fmeta:meta])* $field:ident: $type:ty,)* })*) => {
        $($(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
        pub struct $name { $($(#[$fmeta])* pub $field: $type,)* })*
    };
}

/// Parameters refuse unknown fields, so that a typing mistake is an error and not silence.
macro_rules! params {
    ($($(#[$meta:meta])* pub struct $name:ident { $($(#[$fmeta:meta])* $field:ident: $type:ty,)* })*) => {
        $($(#[$meta])*
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name { $($(#[$fmeta])* pub $field: $type,)* })*
    };
}
