//! Providers, scripts and the OpenAI dialect through the crate's public face.

mod common;
mod mock;
mod openai;
mod providers;
mod script;
