pub mod mock;
pub mod lodge;
