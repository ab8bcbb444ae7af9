//! SYN cookies need a second program, `assign`, behind the XDP one: only there may the kernel be told of a connection
//! whose handshake it did not do. It calls a function of the kernel, whose number is another in each kernel.

use aya::programs::links::{FdLink, LinkOrder, PinnedLink};
use aya::programs::tc::{SchedClassifierLink, TcAttachOptions};
use aya::programs::{ProgramError, SchedClassifier, TcAttachType};
use aya::{Btf, Ebpf};
use aya_obj::btf::BtfKind;
use std::path::{Path, PathBuf};

use crate::program::{DEFUNCT, open_link};
use crate::{Error, Result};

/// Name of the program in the object.
const PROGRAM: &str = "assign";
/// The kernel function that it calls.
const FUNCTION: &str = "bpf_sk_assign_tcp_reqsk";
/// The call in l4/xdp/accept.h: opcode, "of a kernel function", offset 0, and the number's place.
const CALL: [u8; 8] = [0x85, 0x20, 0, 0, 0x11, 0xca, 0xc0, 0x5e];

/// The object with this kernel's number in the call.
///
/// # Errors
///
/// [`Error::NoCookies`] when the kernel has no such function.
pub(crate) fn with_number(object: &[u8]) -> Result<Vec<u8>> {
    let missing = |source| Error::NoCookies { source: Box::new(source) };
    let number = Btf::from_sys_fs()
        .and_then(|btf| btf.id_by_type_name_kind(FUNCTION, BtfKind::Func))
        .map_err(missing)?;
    let mut object = object.to_vec();
    let found = object.windows(CALL.len()).position(|bytes| bytes == CALL);
    if let Some(place) = found.and_then(|at| object.get_mut(at + 4..at + CALL.len())) {
        place.copy_from_slice(&number.to_ne_bytes());
    }
    Ok(object)
}

const PIN_PREFIX: &str = "cookies-";

/// Loads the program.
///
/// # Errors
///
/// [`Error::Verifier`] when the kernel refuses it.
pub(crate) fn load(ebpf: &mut Ebpf) -> Result<()> {
    let program = classifier(ebpf)?;
    crate::program::verified(|| program.load())
}

/// Attaches it to what comes in by an interface; a pinned link is taken over.
///
/// # Errors
///
/// [`Error::Attach`], [`Error::Pin`].
pub(crate) fn attach(ebpf: &mut Ebpf, pin_dir: Option<&Path>, interface: &str) -> Result<()> {
    let program = classifier(ebpf)?;
    let pin = pin_dir.map(|folder| pin(folder, interface));
    if let Some(pin) = pin.as_deref().filter(|pin| pin.exists()) {
        let link = SchedClassifierLink::try_from(FdLink::from(open_link(pin)?))
            .map_err(|source| Error::attach(interface, source))?;
        match program.attach_to_link(link) {
            // The pin keeps the link; only this handle closes.
            Ok(id) => {
                return program.take_link(id).map(drop).map_err(|source| Error::attach(interface, source));
            }
            Err(ProgramError::SyscallError(error)) if error.io_error.raw_os_error() == Some(DEFUNCT) => {
                remove(pin)?;
            }
            Err(source) => return Err(Error::attach(interface, source)),
        }
    }
    let order = TcAttachOptions::TcxOrder(LinkOrder::default());
    let id = program
        .attach_with_options(interface, TcAttachType::Ingress, order)
        .map_err(|source| Error::attach(interface, source))?;
    if let Some(pin) = pin {
        let link = program.take_link(id).map_err(|source| Error::attach(interface, source))?;
        let link = FdLink::try_from(link).map_err(|source| Error::attach(interface, source))?;
        link.pin(&pin).map_err(|source| Error::Pin { path: pin, source: Box::new(source) })?;
    }
    Ok(())
}

/// Takes a pinned program off an interface; says whether there was one.
///
/// # Errors
///
/// [`Error::Pin`].
pub(crate) fn detach(pin_dir: &Path, interface: &str) -> Result<bool> {
    let pin = pin(pin_dir, interface);
    let was_there = pin.exists();
    if was_there {
        remove(&pin)?;
    }
    Ok(was_there)
}

/// The interface of a pin of this program.
pub(crate) fn interface_of(name: &str) -> Option<&str> {
    name.strip_prefix(PIN_PREFIX)
}

fn remove(pin: &Path) -> Result<()> {
    let link: PinnedLink = open_link(pin)?;
    link.unpin().map(drop).map_err(|source| Error::Pin { path: pin.to_owned(), source: Box::new(source) })
}

fn pin(pin_dir: &Path, interface: &str) -> PathBuf {
    pin_dir.join(format!("{PIN_PREFIX}{interface}"))
}

fn classifier(ebpf: &mut Ebpf) -> Result<&mut SchedClassifier> {
    let program = ebpf.program_mut(PROGRAM).ok_or(ProgramError::NotLoaded);
    program.and_then(TryInto::try_into).map_err(Error::verifier)
}
