//! The macro behind the table of events.

use schemars::Schema;

/// What documentation and client libraries need to know of a kind.
#[derive(Debug, Clone)]
pub struct EventDoc {
    pub name: &'static str,
    pub summary: &'static str,
    /// Of its `data`.
    pub schema: Schema,
}

/// Declares every kind of event: its summary, stored code, name and fields. Codes and tags are stored: they are never
/// changed and never reused.
macro_rules! events {
    ($(
        #[doc = $summary:literal]
        $code:literal $name:literal $kind:ident {
            $( $(#[$meta:meta])* $field:ident: $type:ty, )*
        }
    )+) => {
        $(
            #[doc = $summary]
            #[derive(Clone, PartialEq, prost::Message, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
            pub struct $kind {
                $( $(#[$meta])* pub $field: $type, )*
            }

            impl From<$kind> for EventBody {
                fn from(body: $kind) -> EventBody {
                    EventBody::$kind(body)
                }
            }
        )+

        /// Names a kind of event.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum EventKind {
            $( #[doc = $summary] $kind, )+
        }

        impl EventKind {
            pub const ALL: &[EventKind] = &[$( EventKind::$kind, )+];

            /// As it is stored.
            pub const fn code(self) -> i64 {
                match self {
                    $( EventKind::$kind => $code, )+
                }
            }

            /// As clients know it.
            pub const fn word(self) -> &'static str {
                match self {
                    $( EventKind::$kind => $name, )+
                }
            }

            pub fn from_code(code: i64) -> Option<EventKind> {
                match code {
                    $( $code => Some(EventKind::$kind), )+
                    _ => None,
                }
            }

            pub fn from_word(word: &str) -> Option<EventKind> {
                match word {
                    $( $name => Some(EventKind::$kind), )+
                    _ => None,
                }
            }

            pub fn doc(self) -> $crate::EventDoc {
                match self {
                    $( EventKind::$kind => $crate::EventDoc {
                        name: $name,
                        summary: $summary.trim_ascii(),
                        schema: schemars::schema_for!($kind),
                    }, )+
                }
            }
        }

        /// What happened.
        #[derive(Debug, Clone, PartialEq)]
        pub enum EventBody {
            $( #[doc = $summary] $kind($kind), )+
        }

        impl EventBody {
            pub fn kind(&self) -> EventKind {
                match self {
                    $( EventBody::$kind(_) => EventKind::$kind, )+
                }
            }

            /// The stored form of its fields.
            pub fn encode(&self) -> Vec<u8> {
                match self {
                    $( EventBody::$kind(body) => prost::Message::encode_to_vec(body), )+
                }
            }

            /// How much it is, in bytes.
            pub fn weight(&self) -> usize {
                match self {
                    $( EventBody::$kind(body) => prost::Message::encoded_len(body), )+
                }
            }

            pub fn decode(kind: EventKind, stored: &[u8]) -> Result<EventBody, prost::DecodeError> {
                Ok(match kind {
                    $( EventKind::$kind => EventBody::$kind(prost::Message::decode(stored)?), )+
                })
            }

            /// The session that it is about.
            pub fn session(&self) -> Option<&str> {
                match self {
                    $( EventBody::$kind(_body) => None$(.or_else(|| $crate::kind::field!(session, $field, _body)))*, )+
                }
            }

            /// The job that it is about.
            pub fn job(&self) -> Option<&str> {
                match self {
                    $( EventBody::$kind(_body) => None$(.or_else(|| $crate::kind::field!(job, $field, _body)))*, )+
                }
            }

            /// Its fields as clients see them; those without a value are absent.
            pub fn data(&self) -> serde_json::Map<String, serde_json::Value> {
                let shown = match self {
                    $( EventBody::$kind(body) => serde_json::to_value(body), )+
                };
                // A struct of strings and numbers is always an object.
                let Ok(serde_json::Value::Object(mut fields)) = shown else { return serde_json::Map::new() };
                fields.retain(|_, value| !value.is_null());
                fields
            }

            /// Reads what [`EventBody::data`] wrote. `None`: this release does not know such an event.
            pub fn from_data(
                kind: &str,
                data: &serde_json::Map<String, serde_json::Value>,
            ) -> Option<EventBody> {
                let data = serde_json::Value::Object(data.clone());
                match EventKind::from_word(kind)? {
                    $( EventKind::$kind => serde_json::from_value(data).ok().map(EventBody::$kind), )+
                }
            }
        }
    };
}

/// The text of a field, if it is the one that is wanted.
macro_rules! field {
    (session, session, $body:ident) => {
        $crate::kind::FieldText::text(&$body.session)
    };
    (job, job, $body:ident) => {
        $crate::kind::FieldText::text(&$body.job)
    };
    ($wanted:ident, $field:ident, $body:ident) => {
        None
    };
}

/// A field that may hold the name of something.
pub(crate) trait FieldText {
    fn text(&self) -> Option<&str>;
}

impl FieldText for String {
    fn text(&self) -> Option<&str> {
        Some(self)
    }
}

impl FieldText for Option<String> {
    fn text(&self) -> Option<&str> {
        self.as_deref()
    }
}

pub(crate) use {events, field};
