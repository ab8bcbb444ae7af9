//! What every daemon has towards its operator: the log on standard error, and unix sockets that only this user may
//! connect to. Called by the daemons alone; it blocks, and belongs on no reactor.

pub mod oplog;
pub mod unix_socket;
