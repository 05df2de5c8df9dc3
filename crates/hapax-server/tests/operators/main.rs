//! What operators type, through the built program: on store files made with the library, and
//! against the admin router on a real port.

mod admin;
mod docs;
mod file;
mod fingerprint;
mod fixture;
mod like;
