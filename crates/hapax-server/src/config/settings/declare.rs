//! How a setting is declared: the macro, and the kinds of values.

use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use toml::de::DeValue;

use super::{Fallback, Kind, Setting};
use crate::config::Secret;
use crate::config::file::section::Section;
use crate::config::file::value::{self, Read, parsed};
use crate::config::text;

/// A group of settings, and the struct that holds their values. Implemented by [`settings!`].
pub(crate) trait Settings: Sized {
    /// The settings, in the order in which they are shown.
    const SETTINGS: &'static [Setting];

    /// The values of a section, with defaults for what it omits; without a section, all defaults.
    /// Mistakes are reported, and a default replaces a value that could not be read.
    fn read(section: Option<&Section<'_>>) -> Self;

    /// Every setting with its value, for comparing and showing.
    fn values(&self) -> Vec<Shown>;
}

/// The value of a setting.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) name: &'static str,
    /// The full value, including secrets: it must never be shown.
    pub(crate) compared: String,
    /// The value without secrets.
    pub(crate) shown: String,
}

/// How a setting whose value is a `T` is read and shown.
pub(crate) struct Spec<T> {
    pub(crate) kind: Kind,
    pub(crate) reader: Reader<T>,
    /// The value without secrets; `None` if there is no value.
    display: fn(&T) -> Option<String>,
    /// The full value.
    compare: fn(&T) -> Option<String>,
    pub(crate) needs_restart: bool,
}

/// How a value is read.
pub(crate) enum Reader<T> {
    Value(fn(&DeValue<'_>, Kind) -> Read<T>),
    Text(fn(&str) -> Read<T>),
    /// A path; only the section knows which directory a relative one starts from.
    Path(
        fn(&Section<'_>, &'static str) -> Option<PathBuf>,
        fn(PathBuf) -> T,
    ),
    /// Reads several settings of the section at once.
    Section(fn(&Section<'_>, &'static str) -> Option<T>),
}

impl<T> Spec<T> {
    const fn new(kind: Kind, reader: Reader<T>, display: fn(&T) -> Option<String>) -> Spec<T> {
        Spec {
            kind,
            reader,
            display,
            compare: display,
            needs_restart: false,
        }
    }

    /// For values that contain secrets: `compare` returns the full value.
    pub(super) const fn compared_by(self, compare: fn(&T) -> Option<String>) -> Spec<T> {
        Spec { compare, ..self }
    }

    /// Marks a setting that only a restart can change.
    pub(super) const fn at_start(self) -> Spec<T> {
        Spec {
            needs_restart: true,
            ..self
        }
    }

    /// Parses the value that a declaration gives.
    ///
    /// # Panics
    ///
    /// If the text is not valid. The tests try every declaration.
    pub(super) fn parse(&self, text: &str) -> T {
        let written = self.kind.in_toml(text);
        let value = || DeValue::parse(&written).map_err(|error| error.to_string());
        let read = match self.reader {
            Reader::Value(read) => value().and_then(|value| read(value.get_ref(), self.kind)),
            Reader::Text(parse) => parse(text),
            Reader::Path(_, make) => Ok(make(text.into())),
            Reader::Section(_) => Err("only a section can say this".to_owned()),
        };
        read.unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    /// A value in the forms for comparing and for showing.
    pub(super) fn show(&self, setting: &Setting, value: &T) -> Shown {
        let none = match setting.fallback {
            Fallback::Words(words) => words.replace('`', ""),
            _ => "none".to_owned(),
        };
        Shown {
            name: setting.name,
            compared: (self.compare)(value).unwrap_or_else(|| none.clone()),
            shown: (self.display)(value).unwrap_or(none),
        }
    }
}

/// Declares settings: the [module](super) explains how.
macro_rules! settings {
    // With the struct that holds their values, and its fields that are not settings.
    (
        $(#[$meta:meta])*
        pub struct $Struct:ident {
            $(
                $(#[doc = $means:literal])+
                $name:ident: $type:ty = $fallback:ident $($text:literal)*, $spec:expr, $example:literal;
            )*
        }
        $(and {
            $(
                $(#[doc = $other_means:literal])+
                $other:ident: $other_type:ty,
            )*
        })?
    ) => {
        $(#[$meta])*
        pub struct $Struct {
            $($(#[doc = $means])+ pub $name: $type,)*
            $($($(#[doc = $other_means])+ pub $other: $other_type,)*)?
        }

        settings! {
            impl for $Struct but ($($($other)*)?), otherwise $Struct {
                $($name: settings!(@absent $type, $spec, $example, $fallback $($text)*),)*
                $($($other: Default::default(),)*)?
            };
            $($(#[doc = $means])+ $name: $type = $fallback $($text)*, $spec, $example;)*
        }
    };
    // For an existing struct, with its fields that are not settings. A setting may have another
    // name than its field.
    (
        impl for $Struct:ident but ($($other:ident)*), otherwise $default:expr;
        $(
            $(#[doc = $means:literal])+
            $name:ident $($(as $setting:ident)? : $type:ty)? = $fallback:ident $($text:literal)*, $spec:expr, $example:literal;
        )*
    ) => {
        impl $crate::config::settings::Settings for $Struct {
            const SETTINGS: &'static [$crate::config::settings::Setting] =
                settings!(@table $($($means)+, $name $($(as $setting)? : $type)?, $fallback $($text)*, $spec, $example;)*);

            fn read(section: Option<&$crate::config::file::section::Section<'_>>) -> Self {
                let mut read = $default;
                if let Some(section) = section {
                    $($(
                        let spec: $crate::config::settings::Spec<$type> = $spec;
                        let name = settings!(@name $name $($setting)?);
                        if let Some(value) = section.value(name, &spec) {
                            read.$name = value;
                        }
                    )?)*
                }
                read
            }

            fn values(&self) -> Vec<$crate::config::settings::Shown> {
                // A full destructuring, so that a new field without a setting does not compile.
                let $Struct { $($($name: settings!(@any $type),)?)* $($other: _,)* } = self;
                let mut values = Vec::new();
                let mut settings = Self::SETTINGS.iter();
                $(
                    let _setting = settings.next().expect("one for each declaration");
                    $(
                        let spec: $crate::config::settings::Spec<$type> = $spec;
                        values.push(spec.show(_setting, &self.$name));
                    )?
                )*
                values
            }
        }
    };
    // Described here, and read by other code.
    (
        $vis:vis const $NAME:ident {
            $(
                $(#[doc = $means:literal])+
                $name:ident = $fallback:ident $($text:literal)*, $spec:expr, $example:literal;
            )*
        }
    ) => {
        $vis const $NAME: &[$crate::config::settings::Setting] =
            settings!(@table $($($means)+, $name, $fallback $($text)*, $spec, $example;)*);
    };

    (@table $($($means:literal)+, $name:ident $($(as $setting:ident)? : $type:ty)?, $fallback:ident $($text:literal)*, $spec:expr, $example:literal;)*) => {
        &[$({
            const SPEC: $crate::config::settings::Spec<settings!(@type $($type)?)> = $spec;
            $crate::config::settings::Setting {
                name: settings!(@name $name $($($setting)?)?),
                kind: SPEC.kind,
                fallback: settings!(@fallback $fallback $($text)*),
                example: $example,
                means: concat!($($means),+),
                needs_restart: SPEC.needs_restart,
            }
        }),*]
    };

    (@type) => { () };
    (@type $type:ty) => { $type };

    (@any $type:ty) => { _ };

    (@name $name:ident) => { stringify!($name) };
    (@name $name:ident $setting:ident) => { stringify!($setting) };

    (@fallback is $text:literal) => { $crate::config::settings::Fallback::Is($text) };
    (@fallback none) => { $crate::config::settings::Fallback::Nothing };
    (@fallback words $words:literal) => { $crate::config::settings::Fallback::Words($words) };
    (@fallback usual $text:literal $words:literal) => {
        $crate::config::settings::Fallback::Words($words)
    };
    (@fallback required) => { $crate::config::settings::Fallback::Required };
    (@fallback flagged) => { $crate::config::settings::Fallback::Required };

    (@absent $type:ty, $spec:expr, $example:literal, is $text:literal) => {{
        let spec: $crate::config::settings::Spec<$type> = $spec;
        spec.parse($text)
    }};
    (@absent $type:ty, $spec:expr, $example:literal, usual $text:literal $words:literal) => {
        settings!(@absent $type, $spec, $example, is $text)
    };
    // This value is never used: a check refuses the configuration.
    (@absent $type:ty, $spec:expr, $example:literal, required) => {
        settings!(@absent $type, $spec, $example, is $example)
    };
    (@absent $type:ty, $spec:expr, $example:literal, $($other:tt)*) => { Default::default() };
}
pub(super) use settings;

/// Shows a value by its `Display`.
pub(super) fn display<T: Display>(value: &T) -> Option<String> {
    Some(value.to_string())
}

/// Shows a value by its `Debug`, if it has no `Display`.
pub(super) fn debug<T: std::fmt::Debug>(value: &T) -> Option<String> {
    Some(format!("{value:?}"))
}

/// Shows a list of values.
#[expect(
    clippy::ptr_arg,
    reason = "a declaration wants a function of its very type"
)]
pub(super) fn list<T: Display>(values: &Vec<T>) -> Option<String> {
    let values: Vec<String> = values.iter().map(ToString::to_string).collect();
    Some(values.join(", "))
}

/// Text that `parse` accepts.
pub(super) const fn text<T: Display>(parse: fn(&str) -> Read<T>) -> Spec<T> {
    shown_text(parse, display)
}

pub(super) const fn shown_text<T>(
    parse: fn(&str) -> Read<T>,
    show: fn(&T) -> Option<String>,
) -> Spec<T> {
    Spec::new(Kind::Text, Reader::Text(parse), show)
}

/// One of these words.
pub(super) const fn choice<T>(
    words: &'static [&'static str],
    parse: fn(&str) -> Read<T>,
    show: fn(&T) -> Option<String>,
) -> Spec<T> {
    Spec::new(Kind::Choice(words), Reader::Text(parse), show)
}

/// A text or a list of texts.
pub(super) const fn texts<T>(
    read: fn(&DeValue<'_>, Kind) -> Read<T>,
    show: fn(&T) -> Option<String>,
) -> Spec<T> {
    value(Kind::TextOrList, read, show)
}

/// A value with its own reader.
pub(super) const fn value<T>(
    kind: Kind,
    read: fn(&DeValue<'_>, Kind) -> Read<T>,
    show: fn(&T) -> Option<String>,
) -> Spec<T> {
    Spec::new(kind, Reader::Value(read), show)
}

/// A value that is read from several settings at once.
pub(super) const fn several<T>(
    kind: Kind,
    read: fn(&Section<'_>, &'static str) -> Option<T>,
    show: fn(&T) -> Option<String>,
) -> Spec<T> {
    Spec::new(kind, Reader::Section(read), show)
}

/// A setting that is only described here; other code reads it.
pub(super) const fn described(kind: Kind) -> Spec<()> {
    Spec::new(kind, Reader::Section(|_, _| None), |()| None)
}

/// A boolean.
pub(super) const fn switch() -> Spec<bool> {
    value(Kind::Switch, value::switch, display)
}

/// A numeric type of a setting.
pub(super) trait Number: Sized {
    fn from_number(number: u64) -> Option<Self>;
    fn number(&self) -> Option<u64>;
}

macro_rules! numbers {
    ($($type:ty)*) => {$(
        impl Number for $type {
            fn from_number(number: u64) -> Option<Self> {
                number.try_into().ok()
            }

            fn number(&self) -> Option<u64> {
                u64::try_from(*self).ok()
            }
        }
    )*};
}
numbers!(u32 u64 usize);

impl<N: Number> Number for Option<N> {
    fn from_number(number: u64) -> Option<Self> {
        N::from_number(number).map(Some)
    }

    fn number(&self) -> Option<u64> {
        self.as_ref().and_then(N::number)
    }
}

pub(super) const fn count<N: Number>(min: u64, max: u64) -> Spec<N> {
    value(Kind::Count { min, max }, read_number, |number| {
        number.number().map(|number| number.to_string())
    })
}

pub(super) const fn size<N: Number>(min: u64, max: u64) -> Spec<N> {
    value(Kind::Size { min, max }, read_number, |bytes| {
        bytes.number().map(text::spelled_size)
    })
}

/// Any number of bytes, including zero.
pub(super) const fn bytes<N: Number>() -> Spec<N> {
    size(0, u64::MAX)
}

fn read_number<N: Number>(value: &DeValue<'_>, kind: Kind) -> Read<N> {
    let number = value::number(value, kind)?;
    N::from_number(number).ok_or_else(|| {
        format!("{number} is more than this machine can address: write a smaller number")
    })
}

/// A duration of at most `max`. `over` is the message for a longer one; empty if another check
/// covers it.
pub(super) const fn duration(zero: bool, max: Duration, over: &'static str) -> Spec<Duration> {
    value(
        Kind::Duration { zero, max, over },
        value::duration,
        |duration| Some(text::spelled(*duration)),
    )
}

/// The longest timeout: none is meant to exceed a day, and a day never overflows time arithmetic.
const A_DAY: Duration = Duration::from_secs(24 * 60 * 60);
const OVER_A_DAY: &str =
    "this is over a day, and nothing here may take that long: write at most \"24h\"";

pub(super) const fn up_to_a_day() -> Spec<Duration> {
    duration(true, A_DAY, OVER_A_DAY)
}

/// A duration of up to a day, and not zero.
pub(super) const fn timeout() -> Spec<Duration> {
    duration(false, A_DAY, OVER_A_DAY)
}

/// A duration of any length; [`Policy::validate`](hapax::Policy::validate) checks it.
pub(super) const fn any_duration() -> Spec<Duration> {
    duration(true, Duration::from_secs(100 * 365 * 24 * 60 * 60), "")
}

/// An existing file.
pub(super) const fn file<P: From<PathBuf> + Clone + Into<Option<PathBuf>>>() -> Spec<P> {
    path(|section, name| section.file(name))
}

/// An existing directory.
pub(super) const fn directory() -> Spec<Option<PathBuf>> {
    path(|section, name| section.directory(name))
}

/// A file that may not exist yet.
pub(super) const fn new_file() -> Spec<Option<PathBuf>> {
    path(|section, name| section.new_file(name))
}

const fn path<P: From<PathBuf> + Clone + Into<Option<PathBuf>>>(
    find: fn(&Section<'_>, &'static str) -> Option<PathBuf>,
) -> Spec<P> {
    Spec::new(Kind::Path, Reader::Path(find, P::from), |path| {
        let path: Option<PathBuf> = path.clone().into();
        path.map(|path| path.display().to_string())
    })
}

/// A bearer token, or the setting `file` with the path of a file that contains it.
pub(super) const fn token(file: &'static str) -> Spec<Option<Secret>> {
    several(
        Kind::Secret { file },
        |section, name| section.secret(name, Secret::token).map(Some),
        |token| token.as_ref().map(|_| "(hidden)".to_owned()),
    )
    .compared_by(|token| token.as_ref().map(|token| token.expose().to_owned()))
}

impl Section<'_> {
    /// The value of a setting in this section, if it is present and valid. Mistakes are reported.
    pub(crate) fn value<T>(&self, name: &'static str, spec: &Spec<T>) -> Option<T> {
        match spec.reader {
            Reader::Value(read) => self.get(name, read),
            Reader::Text(parse) => self.get(name, parsed(parse)),
            Reader::Path(find, make) => find(self, name).map(make),
            Reader::Section(read) => read(self, name),
        }
    }
}
