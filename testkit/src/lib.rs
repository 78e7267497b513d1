pub mod crash;
pub mod lodge;
pub mod mock;
