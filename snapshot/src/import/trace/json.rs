//! The memory events of a Chrome trace, which are read one by one.

use std::fmt;
use std::io::Read;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

/// A value of any type. Texts and numbers are distinguished, and all other types are equal.
#[derive(Clone, PartialEq, Default, Debug)]
pub(super) enum Scalar {
    #[default]
    Other,
    Whole(i128),
    Float(f64),
    Text(String),
}

impl Scalar {
    pub(super) fn whole(&self) -> Option<i128> {
        match *self {
            Self::Whole(number) => Some(number),
            Self::Float(number) if number.is_finite() => Some(number as i128),
            _ => None,
        }
    }

    /// Returns a number of microseconds as nanoseconds.
    pub(super) fn nanoseconds(&self) -> Option<i64> {
        match *self {
            Self::Whole(number) => i64::try_from(number.checked_mul(1000)?).ok(),
            Self::Float(number) => {
                let nanoseconds = (number * 1000.0).round();
                (nanoseconds.abs() < 9e18).then_some(nanoseconds as i64)
            }
            _ => None,
        }
    }

    pub(super) fn text(&self) -> &str {
        if let Self::Text(text) = self { text } else { "" }
    }
}

/// An event of a trace.
#[derive(Default, Debug)]
pub(super) struct RawEvent {
    pub(super) ph: Scalar,
    pub(super) cat: Scalar,
    pub(super) name: Scalar,
    pub(super) tid: Scalar,
    pub(super) ts: Scalar,
    pub(super) dur: Scalar,
    pub(super) args: Args,
}

/// The arguments of a memory event.
#[derive(Default, Debug)]
pub(super) struct Args {
    pub(super) bytes: Scalar,
    pub(super) address: Scalar,
    pub(super) device: Scalar,
    pub(super) device_type: Scalar,
    pub(super) allocated: Scalar,
    pub(super) reserved: Scalar,
    pub(super) index: Scalar,
}

/// Receives the events of a trace.
pub(super) trait Sink {
    /// Receives an event. If it returns false, reading ends.
    fn event(&mut self, event: &RawEvent) -> bool;

    /// Receives the time that other times count from, in nanoseconds since 1970.
    fn base(&mut self, nanoseconds: i64);
}

/// Reads a trace.
///
/// # Errors
/// The text is not JSON, or the sink ended the reading.
pub(super) fn read(text: impl Read, sink: &mut impl Sink) -> Result<(), serde_json::Error> {
    let mut json = serde_json::Deserializer::from_reader(text);
    Top(sink).deserialize(&mut json)
}

struct Top<'a, S>(&'a mut S);

impl<'de, S: Sink> DeserializeSeed<'de> for Top<'_, S> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de, S: Sink> Visitor<'de> for Top<'_, S> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a trace")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<(), A::Error> {
        events(self.0, seq)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Scalar>()? {
            match key.text() {
                "traceEvents" => map.next_value_seed(List(self.0))?,
                "baseTimeNanoseconds" => {
                    let base = map.next_value::<Scalar>()?.whole();
                    if let Some(base) = base.and_then(|base| i64::try_from(base).ok()) {
                        self.0.base(base);
                    }
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

struct List<'a, S>(&'a mut S);

impl<'de, S: Sink> DeserializeSeed<'de> for List<'_, S> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_option(self)
    }
}

impl<'de, S: Sink> Visitor<'de> for List<'_, S> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of events")
    }

    /// Reads `null`, which is a list without events.
    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_seq(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<(), A::Error> {
        events(self.0, seq)
    }
}

fn events<'de, A: SeqAccess<'de>>(sink: &mut impl Sink, mut seq: A) -> Result<(), A::Error> {
    while let Some(event) = seq.next_element::<RawEvent>()? {
        if !sink.event(&event) {
            return Err(A::Error::custom("ended"));
        }
    }
    Ok(())
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Scalar;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }

            fn visit_bool<E>(self, _: bool) -> Result<Scalar, E> {
                Ok(Scalar::Other)
            }

            fn visit_unit<E>(self) -> Result<Scalar, E> {
                Ok(Scalar::Other)
            }

            fn visit_i64<E>(self, number: i64) -> Result<Scalar, E> {
                Ok(Scalar::Whole(number.into()))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Scalar, E> {
                Ok(Scalar::Whole(number.into()))
            }

            fn visit_f64<E>(self, number: f64) -> Result<Scalar, E> {
                Ok(Scalar::Float(number))
            }

            fn visit_str<E>(self, text: &str) -> Result<Scalar, E> {
                Ok(Scalar::Text(text.to_owned()))
            }

            fn visit_string<E>(self, text: String) -> Result<Scalar, E> {
                Ok(Scalar::Text(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Scalar, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Scalar::Other)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Scalar, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Scalar::Other)
            }
        }
        json.deserialize_any(Any)
    }
}

/// The keys of an event.
#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum EventKey {
    Ph,
    Cat,
    Name,
    Tid,
    Ts,
    Dur,
    Args,
    #[serde(other)]
    Other,
}

/// The keys of a memory event's arguments.
#[derive(Deserialize)]
#[serde(field_identifier)]
enum ArgsKey {
    Bytes,
    Addr,
    #[serde(rename = "Device Id")]
    Device,
    #[serde(rename = "Device Type")]
    DeviceType,
    #[serde(rename = "Total Allocated")]
    Allocated,
    #[serde(rename = "Total Reserved")]
    Reserved,
    #[serde(rename = "Ev Idx")]
    Index,
    #[serde(other)]
    Other,
}

/// An object in which some keys matter. If a key occurs twice, the last value counts.
trait Object: Default {
    type Key: DeserializeOwned;

    /// Reads the value of a key.
    fn take<'de, A: MapAccess<'de>>(&mut self, key: Self::Key, map: &mut A) -> Result<(), A::Error>;
}

impl Object for RawEvent {
    type Key = EventKey;

    fn take<'de, A: MapAccess<'de>>(&mut self, key: EventKey, map: &mut A) -> Result<(), A::Error> {
        let place = match key {
            EventKey::Ph => &mut self.ph,
            EventKey::Cat => &mut self.cat,
            EventKey::Name => &mut self.name,
            EventKey::Tid => &mut self.tid,
            EventKey::Ts => &mut self.ts,
            EventKey::Dur => &mut self.dur,
            EventKey::Args => {
                self.args = map.next_value()?;
                return Ok(());
            }
            EventKey::Other => return map.next_value::<IgnoredAny>().map(drop),
        };
        *place = map.next_value()?;
        Ok(())
    }
}

impl Object for Args {
    type Key = ArgsKey;

    fn take<'de, A: MapAccess<'de>>(&mut self, key: ArgsKey, map: &mut A) -> Result<(), A::Error> {
        let place = match key {
            ArgsKey::Bytes => &mut self.bytes,
            ArgsKey::Addr => &mut self.address,
            ArgsKey::Device => &mut self.device,
            ArgsKey::DeviceType => &mut self.device_type,
            ArgsKey::Allocated => &mut self.allocated,
            ArgsKey::Reserved => &mut self.reserved,
            ArgsKey::Index => &mut self.index,
            ArgsKey::Other => return map.next_value::<IgnoredAny>().map(drop),
        };
        *place = map.next_value()?;
        Ok(())
    }
}

impl<'de> Deserialize<'de> for RawEvent {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_any(AnyObject(PhantomData))
    }
}

impl<'de> Deserialize<'de> for Args {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_any(AnyObject(PhantomData))
    }
}

/// Reads an object. A value of another type counts as an object without keys.
struct AnyObject<T>(PhantomData<T>);

impl<'de, T: Object> Visitor<'de> for AnyObject<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_unit<E>(self) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_u64<E>(self, _: u64) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_str<E>(self, _: &str) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<T, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(T::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        let mut object = T::default();
        while let Some(key) = map.next_key()? {
            object.take(key, &mut map)?;
        }
        Ok(object)
    }
}
