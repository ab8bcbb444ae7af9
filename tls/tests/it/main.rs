//! The crate's behaviour from outside: two ends in memory, no socket, no sleep.

#[cfg(test)]
mod common;
#[cfg(test)]
mod early;
#[cfg(test)]
mod hellos;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod names;
#[cfg(test)]
mod peers;
#[cfg(test)]
mod sessions;
#[cfg(test)]
mod tickets;
