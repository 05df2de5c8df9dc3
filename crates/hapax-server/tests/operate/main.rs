//! A gateway that is operated: given another configuration while it works, asked what it does, told
//! to only watch.

mod lines;
mod load;
mod logged;
mod metrics;
mod program;
mod rules;
mod service;
mod shadow;
mod wire;
mod world;
