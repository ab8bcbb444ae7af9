//! When requests start: the schedule of an open loop, and the desk where connections ask for the next request.

mod desk;
mod schedule;

pub(crate) use desk::{Desk, Take};
pub(crate) use schedule::{Arrivals, Burst, Schedule, Spacing, Stage};
