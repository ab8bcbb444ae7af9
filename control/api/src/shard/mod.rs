//! shard's own messages, by version. The published contract is proto/shard/v1/options.proto; a test compares the
//! two field by field.

pub mod v1;
