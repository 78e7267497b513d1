pub mod lodge;
pub mod mock;
