//! PROXY protocol: the answer does not depend on how the bytes arrive, and what is written is read back.

#![no_main]

use http_wire::proxy_protocol::{V2_BYTES_MAX, parse, write_v1, write_v2};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    match parse(data) {
        Ok(None) => {
            assert!(data.len() < V2_BYTES_MAX, "waits for ever");
            for cut in 0..data.len() {
                assert_eq!(parse(&data[..cut]), Ok(None));
            }
        }
        Ok(Some((length, header))) => {
            assert!(length <= data.len() && length <= V2_BYTES_MAX);
            assert_eq!(parse(&data[..length]), Ok(Some((length, header))), "looks at what follows");
            for cut in (0..length).rev().take(300) {
                assert_eq!(parse(&data[..cut]), Ok(None));
            }
            for write in [write_v1, write_v2] {
                let mut bytes = Vec::new();
                write(&header, &mut bytes);
                let written = bytes.len();
                bytes.extend_from_slice(data);
                assert_eq!(parse(&bytes), Ok(Some((written, header))));
            }
        }
        Err(_) => {
            for more in [&b"\r\n"[..], b"\n", b"\0\0\0\0", &[0xff; 300]] {
                assert!(parse(&[data, more].concat()).is_err(), "more bytes make it good");
            }
        }
    }
});
