//! Requests to commands: what the arguments say, or what is wrong with them.

use std::fmt;

use super::codec::reply::Version;
use super::throttle::ThrottleError;

/// The commands, as `COMMAND LIST` tells them.
pub(super) const NAMES: [&str; 12] = [
    "auth",
    "cl.throttle",
    "client",
    "command",
    "echo",
    "hello",
    "info",
    "ping",
    "quit",
    "reset",
    "select",
    "tg.check",
];

/// The longest name of a command or an option: longer ones are unknown without being looked at.
const NAME_MAX: usize = 16;

/// The longest name that a client may give itself, in bytes.
const CLIENT_NAME_MAX: usize = 128;

/// One request.
///
/// A further command is a variant here, a row of [`Command::parse`] and of [`NAMES`], and an arm of `Session::answer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command<'a> {
    Throttle(Call<'a>),
    Check {
        limit: &'a [u8],
        key: &'a [u8],
        cost: u64,
    },
    Ping(Option<&'a [u8]>),
    Echo(&'a [u8]),
    Quit,
    Reset,
    Hello(Hello<'a>),
    Auth(Credentials<'a>),
    Select,
    ClientId,
    ClientGetName,
    ClientSetName(&'a [u8]),
    ClientSetInfo,
    Names,
    Docs,
    CountNames,
    /// For each of so many names that there is nothing to tell.
    Describe(usize),
    Info,
}

/// `CL.THROTTLE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Call<'a> {
    pub(super) key: &'a [u8],
    pub(super) max_burst: i64,
    pub(super) count: i64,
    pub(super) period_s: i64,
    pub(super) quantity: i64,
}

/// `HELLO`: each part may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Hello<'a> {
    pub(super) version: Option<Version>,
    pub(super) credentials: Option<Credentials<'a>>,
    pub(super) name: Option<&'a [u8]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Credentials<'a> {
    /// `default` when it is not said: there is one user.
    pub(super) user: &'a [u8],
    pub(super) password: &'a [u8],
}

/// Why a request is not done. The first word of the text is the kind, as Redis clients know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal<'a> {
    UnknownCommand(&'a [u8]),
    UnknownSubcommand { command: &'static str, name: &'a [u8] },
    Arguments(&'static str),
    Syntax(&'static str),
    NotAnInteger(&'static str),
    Negative(&'static str),
    NoLimits,
    DatabaseIndex,
    ClientName,
    UnknownVersion,
    NoPasswordSet,
    WrongPassword,
    NotAuthenticated,
    Throttle(ThrottleError),
}

impl fmt::Display for Refusal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownCommand(name) => write!(f, "ERR unknown command '{}'", Quoted(name)),
            Self::UnknownSubcommand { command, name } => {
                write!(f, "ERR unknown subcommand '{}' of '{command}'", Quoted(name))
            }
            Self::Arguments("cl.throttle") => f.write_str(
                "ERR wrong number of arguments for 'cl.throttle' command; \
                 write CL.THROTTLE key max_burst count period [quantity]",
            ),
            Self::Arguments("tg.check") => f.write_str(
                "ERR wrong number of arguments for 'tg.check' command; write TG.CHECK limit key [cost]",
            ),
            Self::Arguments(command) => write!(f, "ERR wrong number of arguments for '{command}' command"),
            Self::Syntax(command) => write!(f, "ERR syntax error in '{command}'"),
            Self::NotAnInteger(what) => write!(f, "ERR {what} is not an integer of 64 bits"),
            Self::Negative(what) => write!(f, "ERR {what} is below 0"),
            Self::NoLimits => f.write_str("ERR this server has no limits of its own; use CL.THROTTLE"),
            Self::DatabaseIndex => f.write_str("ERR DB index is out of range; there is 0 only"),
            Self::ClientName => write!(
                f,
                "ERR a client name has at most {CLIENT_NAME_MAX} printable characters and no spaces"
            ),
            Self::UnknownVersion => f.write_str("NOPROTO unsupported protocol version"),
            Self::NoPasswordSet => {
                f.write_str("ERR AUTH without a password being set; this server asks for none")
            }
            Self::WrongPassword => f.write_str("WRONGPASS invalid username-password pair"),
            Self::NotAuthenticated => f.write_str("NOAUTH Authentication required."),
            Self::Throttle(error) => write!(f, "ERR {error}"),
        }
    }
}

/// What a client wrote, in an answer: the printable part, cut short.
struct Quoted<'a>(&'a [u8]);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 64;
        for &byte in self.0.iter().take(SHOWN) {
            let shown = if byte.is_ascii_graphic() || byte == b' ' { char::from(byte) } else { '?' };
            fmt::Write::write_char(f, shown)?;
        }
        if self.0.len() > SHOWN { f.write_str("...") } else { Ok(()) }
    }
}

impl<'a> Command<'a> {
    /// What the arguments of a request say; the first is its name.
    #[inline]
    pub(super) fn parse(args: &[&'a [u8]]) -> Result<Self, Refusal<'a>> {
        match args {
            [name, args @ ..] if name.eq_ignore_ascii_case(b"CL.THROTTLE") => {
                Call::parse(args).map(Self::Throttle)
            }
            _ => Self::parse_other(args),
        }
    }

    /// All that is said once a connection, and not for each decision.
    #[cold]
    fn parse_other(args: &[&'a [u8]]) -> Result<Self, Refusal<'a>> {
        let Some((&name, args)) = args.split_first() else { return Err(Refusal::UnknownCommand(b"")) };
        match (Upper::of(name).get(), args) {
            (b"TG.CHECK", [limit, key]) => Ok(Self::Check { limit, key, cost: 1 }),
            (b"TG.CHECK", [limit, key, cost]) => {
                let cost = u64::try_from(integer(cost, "cost")?).map_err(|_| Refusal::Negative("cost"))?;
                Ok(Self::Check { limit, key, cost })
            }
            (b"TG.CHECK", _) => Err(Refusal::Arguments("tg.check")),
            (b"PING", []) => Ok(Self::Ping(None)),
            (b"PING", [message]) => Ok(Self::Ping(Some(message))),
            (b"PING", _) => Err(Refusal::Arguments("ping")),
            (b"ECHO", [message]) => Ok(Self::Echo(message)),
            (b"ECHO", _) => Err(Refusal::Arguments("echo")),
            (b"QUIT", _) => Ok(Self::Quit),
            (b"RESET", []) => Ok(Self::Reset),
            (b"RESET", _) => Err(Refusal::Arguments("reset")),
            (b"HELLO", args) => Hello::parse(args).map(Self::Hello),
            (b"AUTH", [password]) => Ok(Self::Auth(Credentials { user: b"default", password })),
            (b"AUTH", [user, password]) => Ok(Self::Auth(Credentials { user, password })),
            (b"AUTH", _) => Err(Refusal::Arguments("auth")),
            (b"SELECT", [index]) => match integer(index, "the DB index")? {
                0 => Ok(Self::Select),
                _ => Err(Refusal::DatabaseIndex),
            },
            (b"SELECT", _) => Err(Refusal::Arguments("select")),
            (b"CLIENT", [sub, args @ ..]) => Self::parse_client(sub, args),
            (b"CLIENT", []) => Err(Refusal::Arguments("client")),
            (b"COMMAND", []) => Ok(Self::Describe(0)),
            (b"COMMAND", [sub, args @ ..]) => Self::parse_command(sub, args),
            // The section does not matter: there is little to tell.
            (b"INFO", _) => Ok(Self::Info),
            _ => Err(Refusal::UnknownCommand(name)),
        }
    }

    fn parse_client(sub: &'a [u8], args: &[&'a [u8]]) -> Result<Self, Refusal<'a>> {
        match (Upper::of(sub).get(), args) {
            (b"ID", []) => Ok(Self::ClientId),
            (b"GETNAME", []) => Ok(Self::ClientGetName),
            (b"SETNAME", [name]) => client_name(name).map(Self::ClientSetName),
            (b"SETINFO", [what, value]) => match Upper::of(what).get() {
                b"LIB-NAME" | b"LIB-VER" => client_name(value).map(|_| Self::ClientSetInfo),
                _ => Err(Refusal::Syntax("client|setinfo")),
            },
            (b"ID" | b"GETNAME" | b"SETNAME" | b"SETINFO", _) => Err(Refusal::Arguments("client")),
            _ => Err(Refusal::UnknownSubcommand { command: "client", name: sub }),
        }
    }

    fn parse_command(sub: &'a [u8], args: &[&'a [u8]]) -> Result<Self, Refusal<'a>> {
        match (Upper::of(sub).get(), args) {
            (b"DOCS", _) => Ok(Self::Docs),
            (b"COUNT", []) => Ok(Self::CountNames),
            (b"LIST", _) => Ok(Self::Names),
            (b"INFO", names) => Ok(Self::Describe(names.len())),
            (b"COUNT", _) => Err(Refusal::Arguments("command|count")),
            _ => Err(Refusal::UnknownSubcommand { command: "command", name: sub }),
        }
    }
}

impl<'a> Call<'a> {
    #[inline]
    fn parse(args: &[&'a [u8]]) -> Result<Self, Refusal<'a>> {
        let (&[key, max_burst, count, period], quantity) = match args {
            [head @ .., quantity] if head.len() == 4 => match head.try_into() {
                Ok(head) => (head, Some(*quantity)),
                Err(_) => return Err(Refusal::Arguments("cl.throttle")),
            },
            _ => match args.try_into() {
                Ok(head) => (head, None),
                Err(_) => return Err(Refusal::Arguments("cl.throttle")),
            },
        };
        Ok(Self {
            key,
            max_burst: integer(max_burst, "max_burst")?,
            count: integer(count, "count per period")?,
            period_s: integer(period, "period")?,
            quantity: quantity.map_or(Ok(1), |quantity| integer(quantity, "quantity"))?,
        })
    }
}

impl<'a> Hello<'a> {
    fn parse(args: &[&'a [u8]]) -> Result<Self, Refusal<'a>> {
        let mut hello = Self::default();
        let Some((version, mut args)) = args.split_first() else { return Ok(hello) };
        hello.version = match *version {
            b"2" => Some(Version::Two),
            b"3" => Some(Version::Three),
            _ => return Err(Refusal::UnknownVersion),
        };
        while let Some((option, rest)) = args.split_first() {
            args = match (Upper::of(option).get(), rest) {
                (b"AUTH", [user, password, rest @ ..]) => {
                    hello.credentials = Some(Credentials { user, password });
                    rest
                }
                (b"SETNAME", [name, rest @ ..]) => {
                    hello.name = Some(client_name(name)?);
                    rest
                }
                _ => return Err(Refusal::Syntax("hello")),
            };
        }
        Ok(hello)
    }
}

fn client_name(name: &[u8]) -> Result<&[u8], Refusal<'_>> {
    let is_name = name.len() <= CLIENT_NAME_MAX && name.iter().all(u8::is_ascii_graphic);
    if is_name { Ok(name) } else { Err(Refusal::ClientName) }
}

/// A decimal integer, as Redis reads it: a sign, digits, and nothing else.
#[inline]
fn integer<'a>(text: &[u8], what: &'static str) -> Result<i64, Refusal<'a>> {
    /// The most digits whose number surely fits.
    const SHORT: usize = 18;
    let (digits, is_negative) = match text {
        [b'-', digits @ ..] => (digits, true),
        digits => (digits, false),
    };
    if digits.is_empty() || digits.len() > SHORT {
        return long_integer(text).ok_or(Refusal::NotAnInteger(what));
    }
    let mut number = 0;
    for digit in digits {
        match digit {
            b'0'..=b'9' => number = number * 10 + i64::from(digit - b'0'),
            _ => return Err(Refusal::NotAnInteger(what)),
        }
    }
    Ok(if is_negative { -number } else { number })
}

#[cold]
fn long_integer(text: &[u8]) -> Option<i64> {
    if text.starts_with(b"+") {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// A name in capitals, or nothing when it is longer than any that is known.
struct Upper {
    bytes: [u8; NAME_MAX],
    len: usize,
}

impl Upper {
    fn of(name: &[u8]) -> Self {
        let mut bytes = [0; NAME_MAX];
        let len = if name.len() > NAME_MAX { 0 } else { name.len() };
        bytes[..len].copy_from_slice(&name[..len]);
        bytes.make_ascii_uppercase();
        Self { bytes, len }
    }

    fn get(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
