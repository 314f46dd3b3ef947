//! JSON lines: one object per line, as nginx, Caddy, Envoy and others write them.
//!
//! A path such as `request.remote_ip` leads into nested objects, and a number in it into arrays
//! (`request.headers.X-Api-Key.0`). A name that holds dots itself is found too. Values stay text, so no number passes
//! through a float. What is not asked for is checked to be JSON and passed over.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::columns::{Row, Slot};
use super::error::{BadLine, Expected, FieldNames, Found};
use super::time;

/// How many fields one row may be asked for: the time, the key and the costs. They are kept in an array of this size.
pub(super) const MAX_FIELDS: usize = 16;

/// The paths that are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Paths {
    /// Time, key if any, costs.
    paths: Vec<Box<str>>,
    keyed: bool,
}

impl Paths {
    /// The caller sees to it that there are at most [`MAX_FIELDS`].
    pub(super) fn new(time: &str, key: Option<&str>, costs: &[String]) -> Self {
        let paths = [time].into_iter().chain(key).chain(costs.iter().map(String::as_str));
        Self { paths: paths.map(Into::into).collect(), keyed: key.is_some() }
    }

    fn index(&self, slot: Slot) -> usize {
        match slot {
            Slot::Time => 0,
            Slot::Key => 1,
            Slot::Cost(index) => 1 + usize::from(self.keyed) + index,
        }
    }

    /// The first path that an object does not have.
    pub(super) fn missing_in(&self, row: &JsonRow<'_>) -> Option<&str> {
        self.paths.iter().zip(&row.values).find(|(_, value)| value.is_none()).map(|(path, _)| &**path)
    }
}

/// An object, and where in it the values are.
#[derive(Debug)]
pub(super) struct JsonRow<'a> {
    paths: &'a Paths,
    values: [Option<&'a str>; MAX_FIELDS],
}

impl<'a> JsonRow<'a> {
    pub(super) fn parse(line: &'a [u8], paths: &'a Paths) -> Result<Self, BadLine> {
        if !line.starts_with(b"{") {
            return Err(BadLine { expected: Expected::JsonObject, found: Found::text(line) });
        }
        let mut row = Self { paths, values: [None; MAX_FIELDS] };
        let mut json = serde_json::Deserializer::from_slice(line);
        Object { prefix: "", paths: &paths.paths, values: &mut row.values }
            .deserialize(&mut json)
            .and_then(|()| json.end())
            .map_err(|error| broken(&error))?;
        Ok(row)
    }
}

impl Row for JsonRow<'_> {
    fn field(&self, slot: Slot) -> Result<Cow<'_, [u8]>, BadLine> {
        let index = self.paths.index(slot);
        let path = &self.paths.paths[index];
        let Some(raw) = self.values[index] else {
            return Err(BadLine { expected: Expected::Field(path.clone()), found: Found::Nothing });
        };
        let found = match raw.as_bytes() {
            [b'"', text @ .., b'"'] if !text.contains(&b'\\') => return Ok(Cow::Borrowed(text)),
            [b'"', ..] => match serde_json::from_str::<String>(raw) {
                Ok(text) => return Ok(Cow::Owned(text.into_bytes())),
                Err(error) => return Err(broken(&error)),
            },
            [b'{', ..] => Found::Object,
            [b'[', ..] => Found::Array,
            b"null" => Found::Null,
            number => return Ok(Cow::Borrowed(number)),
        };
        Err(BadLine { expected: Expected::Scalar(path.clone()), found })
    }
}

/// The fields of an object, for the guess at the time and for messages: nested ones as paths, at most 1,000.
#[derive(Debug)]
pub(super) struct JsonFields {
    top: Vec<String>,
    all: FieldNames,
}

impl JsonFields {
    /// Bytes that are not UTF-8 do no harm here.
    pub(super) fn of(line: &[u8]) -> Result<Self, BadLine> {
        let object = match serde_json::from_str(&String::from_utf8_lossy(line)) {
            Ok(Value::Object(object)) => object,
            Ok(_) => return Err(BadLine { expected: Expected::JsonObject, found: Found::text(line) }),
            Err(_) if !line.starts_with(b"{") => {
                return Err(BadLine { expected: Expected::JsonObject, found: Found::text(line) });
            }
            Err(error) => return Err(broken(&error)),
        };
        let mut names = Vec::new();
        for (name, value) in &object {
            list(name.clone(), value, &mut names);
        }
        Ok(Self { top: object.into_iter().map(|(name, _)| name).collect(), all: FieldNames::new(names) })
    }

    /// The field that is taken for the time when none is given.
    pub(super) fn time(&self) -> Option<&str> {
        time::guess(&self.top).map(|index| self.top[index].as_str())
    }

    pub(super) fn into_names(self) -> FieldNames {
        self.all
    }
}

/// Nesting ends at 128, where the parser refuses it.
fn list(path: String, value: &Value, names: &mut Vec<String>) {
    if names.len() >= 1_000 {
        return;
    }
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                list(format!("{path}.{name}"), value, names);
            }
        }
        _ => names.push(path),
    }
}

fn broken(error: &serde_json::Error) -> BadLine {
    let found = if error.is_eof() { Found::EndOfLine } else { Found::BrokenAt(error.column()) };
    BadLine { expected: Expected::JsonObject, found }
}

/// An object at a place: `prefix` is what the paths that lead here begin with, up to and with the last dot.
struct Object<'p, 'v, 'de> {
    prefix: &'p str,
    paths: &'p [Box<str>],
    values: &'v mut [Option<&'de str>; MAX_FIELDS],
}

impl<'p, 'de> Object<'p, '_, 'de> {
    /// Keeps the value at `full` and goes into it, as far as paths lead there.
    fn visit_value(&mut self, full: &'p str, raw: &'de str) -> Result<(), serde_json::Error> {
        let mut below = None;
        for (path, value) in self.paths.iter().zip(self.values.iter_mut()) {
            match path.strip_prefix(full) {
                Some("") => *value = Some(raw),
                Some(rest) if rest.starts_with('.') => below = Some(&path[..=full.len()]),
                _ => {}
            }
        }
        let Some(prefix) = below else { return Ok(()) };
        let mut inner = Object { prefix, paths: self.paths, values: self.values };
        match raw.as_bytes().first() {
            Some(b'{') => inner.deserialize(&mut serde_json::Deserializer::from_str(raw)),
            Some(b'[') => {
                let elements: Vec<&'de RawValue> = serde_json::from_str(raw)?;
                for (index, element) in elements.into_iter().enumerate() {
                    if let Some(full) = lead(prefix, inner.paths, &index.to_string()) {
                        inner.visit_value(full, element.get())?;
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// `prefix` and `name` as the start of some path, when a path leads there.
fn lead<'p>(prefix: &str, paths: &'p [Box<str>], name: &str) -> Option<&'p str> {
    let length = prefix.len() + name.len();
    paths.iter().find_map(|path| {
        // Most names differ in length, so the cheap look at where the name would end comes before the texts.
        // Comparing with an empty prefix, at the top level, costs more than all else here, so it is left out.
        let ends = matches!(path.as_bytes().get(length), None | Some(b'.')) && path.len() >= length;
        let leads = ends
            && path.as_bytes()[prefix.len()..].starts_with(name.as_bytes())
            && (prefix.is_empty() || path.starts_with(prefix));
        leads.then(|| &path[..length])
    })
}

impl<'de> DeserializeSeed<'de> for Object<'_, '_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object<'_, '_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key_seed(Name { prefix: self.prefix, paths: self.paths })? {
            match name {
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
                Some(full) => {
                    let raw: &'de RawValue = map.next_value()?;
                    // The raw value has just been checked, so this can fail only on names that are no UTF-8.
                    self.visit_value(full, raw.get()).map_err(serde::de::Error::custom)?;
                }
            }
        }
        Ok(())
    }
}

/// The name of a field: the start of a path that leads there, or `None` when none does. It copies nothing.
struct Name<'p> {
    prefix: &'p str,
    paths: &'p [Box<str>],
}

impl<'de, 'p> DeserializeSeed<'de> for Name<'p> {
    type Value = Option<&'p str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'p> Visitor<'_> for Name<'p> {
    type Value = Option<&'p str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(lead(self.prefix, self.paths, name))
    }
}
