//! The decisions that others ask for: `/v1` at the address of `--listen`.

use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use tidegate_http::RateLimit;
use tidegate_server::http::{Api, KeyOf, LimitInWords, router};

use super::key::{Word, key};
use super::layer::words;
use crate::check::described;
use crate::limits::FileLimit;

/// The limits in force, as the file says them.
#[derive(Debug, Clone, Default)]
pub(super) struct InForce(Arc<Mutex<Arc<[Known]>>>);

/// A limit in force.
#[derive(Debug)]
struct Known {
    limit: FileLimit,
    /// What its key is made of, or why that is not known. It is read once, as each decision needs it.
    words: Result<Vec<Word>, String>,
}

impl InForce {
    pub(super) fn set(&self, limits: Vec<FileLimit>) {
        let known = |limit: FileLimit| {
            let words = words(&limit).map_err(|error| error.to_string());
            Known { limit, words }
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = limits.into_iter().map(known).collect();
    }

    fn get(&self) -> Arc<[Known]> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// How the keys of the limits in force are read.
pub(super) fn key_of(in_force: &InForce) -> KeyOf {
    let in_force = in_force.clone();
    Arc::new(move |limit: &str, parts: &[String]| {
        let limits = in_force.get();
        // What is no limit is said by whoever decides.
        let Some(Known { limit, words }) = limits.iter().find(|one| *one.limit.limit.name == *limit) else {
            return Ok(tidegate_http::layer::Key::everyone());
        };
        let words = words.as_ref().map_err(String::clone)?;
        if words.len() != parts.len() {
            let name = &limit.limit.name;
            return Err(match limit.key.as_slice() {
                [] => format!("the limit `{name}` has no key; leave `key` out"),
                [word] => format!("the limit `{name}` has a key ({word}); write it as `key`"),
                words => format!(
                    "the limit `{name}` has a key of {} parts ({}); write them as a list",
                    words.len(),
                    words.join(", ")
                ),
            });
        }
        key(words, parts)
    })
}

/// The routes that decide by this layer, for who has the token in the file, if there is one.
pub(super) fn routes(layer: &RateLimit, in_force: &InForce, token: Option<Arc<str>>) -> Router {
    let of_words = in_force.clone();
    let in_words = move || {
        let line = |line: &str| line.trim().to_owned();
        let of = |limit: &FileLimit| LimitInWords {
            name: limit.limit.name.to_string(),
            words: described(limit).lines().map(line).collect(),
        };
        of_words.get().iter().map(|known| of(&known.limit)).collect()
    };
    router(Api { limits: layer.clone(), key_of: key_of(in_force), words: Arc::new(in_words), token })
}
