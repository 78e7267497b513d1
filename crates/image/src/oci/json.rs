//! Parses untrusted JSON.
//!
//! Owns: that a document means the same to every reader: no key occurs twice in one object, and nesting is limited.
//! Never: the meaning of the documents.

use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::{BadImage, MANIFEST_MAX};
use crate::agentfile::shown;

/// Objects and arrays around a value.
const DEPTH_MAX: usize = 32;

/// Reads one document. `what` is how refusals call it.
pub(super) fn read<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T, BadImage> {
    if bytes.len() as u64 > MANIFEST_MAX {
        return Err(BadImage::new(format!(
            "{what} has {} bytes, and at most {MANIFEST_MAX} are read",
            bytes.len()
        )));
    }
    let bad = |cause: serde_json::Error| {
        BadImage::new(format!("{what} cannot be read: {}", shown(&cause.to_string())))
    };
    let mut walk = serde_json::Deserializer::from_slice(bytes);
    StrictJsonWalk { depth: 0 }.deserialize(&mut walk).map_err(bad)?;
    walk.end().map_err(bad)?;
    serde_json::from_slice::<Object<T>>(bytes).map(|object| object.0).map_err(bad)
}

/// A field that may be absent or `null`, or else is an object.
pub(super) fn object_if_any<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::<Object<T>>::deserialize(deserializer)?.map(|object| object.0))
}

/// A field that is a list of objects; `null` is the empty one.
pub(super) fn objects<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    objects_if_any(deserializer).map(Option::unwrap_or_default)
}

/// A field that may be absent or `null`, or else is a list of objects.
pub(super) fn objects_if_any<'de, D, T>(deserializer: D) -> Result<Option<Vec<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let objects = Option::<Vec<Object<T>>>::deserialize(deserializer)?;
    Ok(objects.map(|objects| objects.into_iter().map(|object| object.0).collect()))
}

/// Writes a document in one line, in the order of its fields.
pub(super) fn write<T: Serialize>(what: &str, value: &T) -> Result<Vec<u8>, BadImage> {
    within(what, serde_json::to_vec(value))
}

/// Writes a document for people, indented by two spaces.
pub(super) fn write_pretty<T: Serialize>(what: &str, value: &T) -> Result<Vec<u8>, BadImage> {
    within(what, serde_json::to_vec_pretty(value))
}

fn within(what: &str, written: serde_json::Result<Vec<u8>>) -> Result<Vec<u8>, BadImage> {
    let bytes = written.map_err(|cause| BadImage::new(format!("{what} cannot be written: {cause}")))?;
    if bytes.len() as u64 <= MANIFEST_MAX {
        return Ok(bytes);
    }
    Err(BadImage::new(format!(
        "{what} would have {} bytes, and at most {MANIFEST_MAX} are read",
        bytes.len()
    )))
}

/// A struct that is written with its names. Read by itself it could be a list of its values as well, which no other
/// reader would take for the same.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<Object<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(entries)).map(Object)
    }
}

/// Walks over a document and keeps nothing of it.
#[derive(Clone, Copy)]
struct StrictJsonWalk {
    depth: usize,
}

impl StrictJsonWalk {
    fn deeper<E: Error>(self) -> Result<StrictJsonWalk, E> {
        if self.depth < DEPTH_MAX {
            return Ok(StrictJsonWalk { depth: self.depth + 1 });
        }
        Err(E::custom(format_args!("it is nested deeper than {DEPTH_MAX}")))
    }
}

impl<'de> DeserializeSeed<'de> for StrictJsonWalk {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for StrictJsonWalk {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let inner = self.deeper()?;
        while items.next_element_seed(inner)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let inner = self.deeper()?;
        let mut seen: HashSet<String> = HashSet::new();
        while let Some(key) = entries.next_key::<String>()? {
            if seen.contains(&key) {
                return Err(A::Error::custom(format_args!("`{}` occurs in it twice", shown(&key))));
            }
            seen.insert(key);
            entries.next_value_seed(inner)?;
        }
        Ok(())
    }
}
