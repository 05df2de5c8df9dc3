//! What a consumer does with what a source delivers. Effects are counted in a table of the test's
//! own. `../sources/` has the brokers, and the storm over them.

mod apply;
mod failing;
mod guarantees;
mod outside;
mod parked;
mod place;
mod script;
mod sqlite;
mod versions;
