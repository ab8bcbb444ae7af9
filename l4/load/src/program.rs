//! Load, attach, replace, detach, and run on a packet.

use std::path::{Path, PathBuf};
use std::time::Duration;

use aya::maps::{Array, MapData, MapInfo};
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::xdp::{Xdp, XdpLink, XdpMode};
use aya::{Ebpf, EbpfLoader, TestRun, TestRunOptions};

use crate::map::{self, Maps, Plain};
use crate::{Error, LoadOptions, Result, cookies};

/// Compiled by build.rs from l4/xdp.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/shard_l4.bpf.o"));

/// Name of the program in the object.
const PROGRAM: &str = "shard_l4";

/// How a program shall be attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Native if the driver can, generic otherwise.
    #[default]
    Auto,
    /// In the driver.
    Native,
    /// In the network stack: works on every interface, at a multiple of the cost.
    Generic,
}

/// How a program was attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// [`Mode::Native`] or [`Mode::Generic`]; [`Mode::Auto`] when an existing link kept its mode.
    pub mode: Mode,
    /// Took the place of a running program, without a packet lost between the two.
    pub replaced: bool,
}

/// Size of the loaded program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// BPF instructions after the verifier's rewriting.
    pub instructions: u32,
    /// Bytes of machine code; 0 when the kernel does not tell.
    pub machine_bytes: u32,
    /// Instructions that the verifier walked; 0 when the kernel does not tell.
    pub verified: u32,
}

/// Result of [`Program::run`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// The XDP action: 1 drop, 2 pass, 3 transmit.
    pub action: u32,
    /// The frame as the program left it.
    pub frame: Vec<u8>,
    /// Mean time of one round.
    pub duration: Duration,
}

/// The loaded program with its maps.
pub struct Program {
    ebpf: Ebpf,
    program: &'static str,
    maps: Maps,
    pin_dir: Option<PathBuf>,
    has_cookies: bool,
}

/// Whether this kernel lets this process load BPF programs.
///
/// # Errors
///
/// The reason why not, such as [`Error::Rights`].
pub fn probe() -> Result<()> {
    let map = Array::<MapData, u32>::create(1, 0);
    map.map(drop).map_err(|source| Error::load("making a map", source.into()))
}

impl Program {
    /// Loads the program and makes its maps, or takes over those that are pinned. Nothing is attached yet.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] for options out of range, [`Error::NotBpffs`] or [`Error::Pin`] for the pin folder,
    /// [`Error::Rights`], [`Error::Load`] or [`Error::Verifier`] when the kernel refuses.
    pub fn load(options: &LoadOptions) -> Result<Self> {
        Self::load_object(options, OBJECT, PROGRAM, &[])
    }

    /// The same with another object that has these maps, such as the bench's wrapped program: `program` in it is what
    /// is attached and run, `constants` are further ones of its own.
    ///
    /// # Errors
    ///
    /// As [`Program::load`].
    pub fn load_object(
        options: &LoadOptions,
        object: &[u8],
        program: &'static str,
        constants: &[(&str, u32)],
    ) -> Result<Self> {
        let mut flow_sets = options.flow_sets()?;
        probe()?;
        let folder = options.pin_dir.as_deref().map(map::make_map_folder).transpose()?;
        if let Some(pin) = folder.as_ref().map(|folder| folder.join("flows")).filter(|pin| pin.exists()) {
            // A pinned table keeps its size.
            let info = MapInfo::from_pin(&pin);
            flow_sets =
                info.map_err(|source| Error::Pin { path: pin, source: Box::new(source) })?.max_entries();
        }
        let config = Plain(options.config(flow_sets)?);
        let mut loader = EbpfLoader::new();
        loader.override_global("config", &config, true);
        loader.map_max_entries("flows", flow_sets);
        let has_cookies = options.syn_cookies_above.is_some();
        let numbered = has_cookies.then(|| cookies::with_number(object)).transpose()?;
        for (name, value) in constants {
            loader.override_global(name, value, true);
        }
        if let Some(folder) = &folder {
            for name in map::NAMES {
                loader.map_pin_path(name, folder.join(name));
            }
        }
        let mut ebpf = loader
            .load(numbered.as_deref().unwrap_or(object))
            .map_err(|source| Error::load("making the maps", source))?;
        let xdp_program = xdp(&mut ebpf, program)?;
        verified(|| xdp_program.load())?;
        if has_cookies {
            cookies::load(&mut ebpf)?;
        }
        let maps = Maps::of(&mut ebpf, options.pin_dir.as_deref())?;
        Ok(Self { ebpf, program, maps, pin_dir: options.pin_dir.clone(), has_cookies })
    }

    /// The program's maps.
    pub const fn maps(&mut self) -> &mut Maps {
        &mut self.maps
    }

    /// Attaches to an interface of this network namespace. Where a pinned link exists, the program in it is replaced
    /// in one step. Without a pin folder the attachment ends with this value.
    ///
    /// # Errors
    ///
    /// [`Error::Attach`] when the interface does not exist or carries another XDP program; [`Error::Rights`].
    pub fn attach(&mut self, interface: &str, mode: Mode) -> Result<Attached> {
        // Before the program that hands it packets, and off after it.
        if self.has_cookies {
            cookies::attach(&mut self.ebpf, self.pin_dir.as_deref(), interface)?;
        }
        let attached = self.attach_xdp(interface, mode);
        if let (Err(_), Some(folder)) = (&attached, &self.pin_dir)
            && !link_pin(folder, interface).exists()
        {
            // Nothing hands it packets here: it would only be left behind.
            cookies::detach(folder, interface)?;
        }
        let attached = attached?;
        if let (false, Some(folder)) = (self.has_cookies, &self.pin_dir) {
            cookies::detach(folder, interface)?;
        }
        Ok(attached)
    }

    fn attach_xdp(&mut self, interface: &str, mode: Mode) -> Result<Attached> {
        let pin = self.pin_dir.as_ref().map(|folder| link_pin(folder, interface));
        let program = xdp(&mut self.ebpf, self.program)?;
        if let Some(pin) = pin.as_deref().filter(|pin| pin.exists()) {
            if replace(program, pin, interface)? {
                return Ok(Attached { mode: Mode::Auto, replaced: true });
            }
            // The interface that the link belonged to is gone; its name is a new one's.
            std::fs::remove_file(pin)
                .map_err(|source| Error::Pin { path: pin.to_owned(), source: Box::new(source) })?;
        }
        let attempt = |program: &mut Xdp, mode| program.attach(interface, mode);
        let (id, mode) = match mode {
            Mode::Native => (attempt(program, XdpMode::Driver), Mode::Native),
            Mode::Generic => (attempt(program, XdpMode::Skb), Mode::Generic),
            Mode::Auto => match attempt(program, XdpMode::Driver) {
                Ok(id) => (Ok(id), Mode::Native),
                Err(_native) => (attempt(program, XdpMode::Skb), Mode::Generic),
            },
        };
        let id = id.map_err(|source| Error::attach(interface, source))?;
        if let Some(pin) = pin {
            let link = program.take_link(id).map_err(|source| Error::attach(interface, source))?;
            let link = FdLink::try_from(link).map_err(|source| Error::attach(interface, source))?;
            link.pin(&pin).map_err(|source| Error::Pin { path: pin, source: Box::new(source) })?;
        }
        Ok(Attached { mode, replaced: false })
    }

    /// Runs the program on a frame, `repeat` times. The kernel does not restore the frame between rounds.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] when the kernel refuses the frame, such as one shorter than an Ethernet header.
    pub fn run(&self, frame: &[u8], repeat: u32) -> Result<Ran> {
        self.test_run(frame, None, repeat)
    }

    /// Runs it once on a frame in front of which there is no room, as with a driver that leaves none.
    ///
    /// # Errors
    ///
    /// As [`Program::run`].
    pub fn run_without_room(&self, frame: &[u8]) -> Result<Ran> {
        /// The most that may stand in front of a frame: a test run takes it, as `struct xdp_frame`, from 256 bytes.
        const IN_FRONT: usize = 216;
        let mut bytes = vec![0; IN_FRONT];
        bytes.extend(frame);
        // `struct xdp_md`: where the frame begins and where it ends come first.
        let mut context = [0; 24];
        for (word, at) in context.as_chunks_mut::<4>().0.iter_mut().zip([IN_FRONT, bytes.len()]) {
            *word = u32::try_from(at).unwrap_or(u32::MAX).to_ne_bytes();
        }
        let mut ran = self.test_run(&bytes, Some(&context), 1)?;
        ran.frame.drain(..IN_FRONT.min(ran.frame.len()));
        Ok(ran)
    }

    fn test_run(&self, bytes: &[u8], context: Option<&[u8]>, repeat: u32) -> Result<Ran> {
        /// Room for what the program may add.
        const ROOM_BYTES: usize = 256;
        let mut out = vec![0; bytes.len() + ROOM_BYTES];
        let options = TestRunOptions {
            data_in: Some(bytes),
            data_out: Some(&mut out),
            ctx_in: context,
            repeat,
            ..TestRunOptions::default()
        };
        let run = |source| Error::Run { source: Box::new(source) };
        let program =
            self.ebpf.program(self.program).ok_or(aya::programs::ProgramError::NotLoaded).map_err(run)?;
        let program: &Xdp = program.try_into().map_err(run)?;
        let result = program.test_run(options).map_err(run)?;
        out.truncate(usize::try_from(result.data_size_out).unwrap_or(usize::MAX));
        Ok(Ran { action: result.return_value, frame: out, duration: result.duration })
    }

    /// How large the loaded program is.
    ///
    /// # Errors
    ///
    /// [`Error::Verifier`] when the kernel does not describe it.
    pub fn size(&mut self) -> Result<Size> {
        /// Bytes of one BPF instruction.
        const INSTRUCTION_BYTES: u32 = 8;
        let info = xdp(&mut self.ebpf, self.program)?.info().map_err(Error::verifier)?;
        Ok(Size {
            instructions: info.size_translated().unwrap_or(0) / INSTRUCTION_BYTES,
            machine_bytes: info.size_jitted(),
            verified: info.verified_instruction_count().unwrap_or(0),
        })
    }
}

/// Detaches the pinned link of an interface; says whether there was one.
///
/// # Errors
///
/// [`Error::Pin`] when the link cannot be opened or its pin not be removed.
pub fn detach(pin_dir: &Path, interface: &str) -> Result<bool> {
    let pin = link_pin(pin_dir, interface);
    let was_there = pin.exists();
    if was_there {
        let pinned = open_link(&pin)?;
        // The kernel detaches when the last reference, which this is, goes.
        pinned.unpin().map(drop).map_err(|source| Error::Pin { path: pin, source: Box::new(source) })?;
    }
    // Also one that an attempt which was cut has left behind.
    Ok(cookies::detach(pin_dir, interface)? || was_there)
}

/// The interfaces with a pinned link, of either program.
///
/// # Errors
///
/// [`Error::Pin`] when the folder cannot be read.
pub fn attached(pin_dir: &Path) -> Result<Vec<String>> {
    let failed = |source| Error::Pin { path: pin_dir.to_owned(), source: Box::new(source) };
    let entries = match std::fs::read_dir(pin_dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        let name = name.to_string_lossy();
        let interface = name.strip_prefix("link-").or_else(|| cookies::interface_of(&name));
        names.extend(interface.map(str::to_owned));
    }
    names.sort();
    names.dedup();
    Ok(names)
}

fn link_pin(pin_dir: &Path, interface: &str) -> PathBuf {
    pin_dir.join(format!("link-{interface}"))
}

pub(crate) fn open_link(pin: &Path) -> Result<PinnedLink> {
    PinnedLink::from_pin(pin).map_err(|source| Error::Pin { path: pin.to_owned(), source: Box::new(source) })
}

/// What the kernel says of a link whose interface went away.
pub(crate) const DEFUNCT: i32 = rustix::io::Errno::NOLINK.raw_os_error();

/// Puts `program` into the pinned link; `false` when the link's interface no longer exists.
fn replace(program: &mut Xdp, pin: &Path, interface: &str) -> Result<bool> {
    let link = FdLink::from(open_link(pin)?);
    let link = XdpLink::try_from(link).map_err(|source| Error::attach(interface, source))?;
    match program.attach_to_link(link) {
        Ok(id) => {
            // The pin keeps the link; only this handle closes.
            program.take_link(id).map(drop).map_err(|source| Error::attach(interface, source))?;
            Ok(true)
        }
        Err(aya::programs::ProgramError::SyscallError(error))
            if error.io_error.raw_os_error() == Some(DEFUNCT) =>
        {
            Ok(false)
        }
        Err(source) => Err(Error::attach(interface, source)),
    }
}

/// Lets the kernel verify a program, again when a signal came meanwhile: then it gives up with EAGAIN, whatever the signal.
///
/// # Errors
///
/// [`Error::Verifier`] when the kernel refuses it, or was disturbed each time.
pub(crate) fn verified(
    mut load: impl FnMut() -> std::result::Result<(), aya::programs::ProgramError>,
) -> Result<()> {
    use aya::programs::ProgramError;
    const ATTEMPTS: usize = 5;
    for _ in 1..ATTEMPTS {
        match load() {
            Err(ProgramError::LoadError { io_error, .. })
                if io_error.kind() == std::io::ErrorKind::WouldBlock => {}
            result => return result.map_err(Error::verifier),
        }
    }
    load().map_err(Error::verifier)
}

fn xdp<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut Xdp> {
    let program = ebpf.program_mut(name).ok_or(aya::programs::ProgramError::NotLoaded);
    program.and_then(TryInto::try_into).map_err(Error::verifier)
}

#[cfg(test)]
mod tests {
    use std::io;

    use aya::programs::ProgramError;
    use aya_obj::VerifierLog;

    use super::*;

    #[test]
    fn a_signal_in_the_middle_is_no_refusal() {
        let refused = |kind: io::ErrorKind| ProgramError::LoadError {
            io_error: kind.into(),
            verifier_log: VerifierLog::new(String::new()),
        };
        for (disturbed, rest, wanted) in [(0, true, 1), (4, true, 5), (4, false, 5), (9, true, 5)] {
            let mut calls = 0;
            let result = verified(|| {
                calls += 1;
                match calls {
                    count if count <= disturbed => Err(refused(io::ErrorKind::WouldBlock)),
                    _ if rest => Ok(()),
                    _ => Err(refused(io::ErrorKind::InvalidInput)),
                }
            });
            assert_eq!((calls, result.is_ok()), (wanted, rest && disturbed < 5));
        }
    }
}
