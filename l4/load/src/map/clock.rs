//! The program's clock, read from user space: a second, tiny program returns the kernel's ticks. No system call tells
//! them, and they need not agree with CLOCK_MONOTONIC (a virtual machine that was restored shows a difference).

use std::path::Path;

use aya::programs::{ProgramError, SocketFilter};
use aya::{Ebpf, TestRun, TestRunOptions};

use crate::{Error, Result};

/// Name of the program, and of its pin.
const PROGRAM: &str = "ticks";

pub(super) struct Clock(SocketFilter);

impl Clock {
    /// Loads the program; pins it in `folder` unless it is there already.
    pub(super) fn of(ebpf: &mut Ebpf, folder: Option<&Path>) -> Result<Self> {
        let program = ebpf.program_mut(PROGRAM).ok_or(ProgramError::NotLoaded).map_err(Error::verifier)?;
        let program: &mut SocketFilter = program.try_into().map_err(Error::verifier)?;
        crate::program::verified(|| program.load())?;
        if let Some(pin) = folder.map(|folder| folder.join(PROGRAM)).filter(|pin| !pin.exists()) {
            program.pin(&pin).map_err(|source| Error::Pin { path: pin, source: Box::new(source) })?;
        }
        let info = program.info().map_err(Error::verifier)?;
        SocketFilter::from_program_info(info, PROGRAM.into()).map(Self).map_err(Error::verifier)
    }

    /// Opens the pinned program.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let pin = folder.join(PROGRAM);
        SocketFilter::from_pin(&pin)
            .map(Self)
            .map_err(|source| Error::Pin { path: pin, source: Box::new(source) })
    }

    /// The lower half of the kernel's ticks.
    pub(super) fn ticks(&self) -> Result<u32> {
        // The shortest frame that the kernel runs a program on.
        let options = TestRunOptions { data_in: Some(&[0; 14]), ..TestRunOptions::default() };
        let ran = self.0.test_run(options).map_err(|source| Error::Run { source: Box::new(source) })?;
        Ok(ran.return_value)
    }
}
