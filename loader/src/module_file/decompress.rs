//! `.ko.xz`, `.ko.gz` and `.ko.zst`, in memory.
//!
//! The three that `CONFIG_MODULE_COMPRESS` offers (`kernel/module/Kconfig`; zstd since 5.13). They are told
//! by their first bytes, as kmod does, not by the file's name. The libraries are Rust all through: a corrupt
//! file can't reach more than our own memory.

use std::{
    io::{self, Read},
    path::Path,
};

use flate2::read::MultiGzDecoder;
use lzma_rust2::XzReader;
use ruzstd::decoding::StreamingDecoder;

use crate::error::{Error, ErrorKind, Result};

/// What an xz file may ask the decoder to allocate: twice what `xz -9` needs. The kernel's own build uses a
/// dictionary of 1 or 2 MiB. (For zstd the library's own limit is as much.)
const MAX_DICTIONARY_KIB: u32 = 128 << 10;

/// The module in `bytes`, of at most `limit` bytes; `path` is for messages.
pub fn decompress(path: &Path, bytes: Vec<u8>, limit: u64) -> Result<Vec<u8>> {
    let mut module = Vec::new();
    let (format, outcome) = match bytes.as_slice() {
        [0x7f, b'E', b'L', b'F', ..] => return Ok(bytes),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => {
            let reader = XzReader::new_mem_limit(bytes.as_slice(), true, MAX_DICTIONARY_KIB);
            ("xz", drain(reader, &mut module, limit))
        }
        [0x1f, 0x8b, ..] => ("gzip", drain(MultiGzDecoder::new(bytes.as_slice()), &mut module, limit)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => ("zstd", drain_zstd(&bytes, &mut module, limit)),
        [] => return Err(odd(path, "is empty")),
        _ => return Err(odd(path, "is neither ELF nor compressed with xz, gzip or zstd")),
    };
    outcome.map_err(|e| odd(path, &format!("is cut short or corrupt ({format})")).with_source(e))?;
    if module.len() as u64 > limit {
        return Err(odd(path, &format!("unpacks to more than {limit} bytes ({format})")));
    }
    Ok(module)
}

/// Appends what `reader` gives to `module`, up to one byte more than `limit`.
fn drain(reader: impl Read, module: &mut Vec<u8>, limit: u64) -> io::Result<()> {
    let room = (limit + 1).saturating_sub(module.len() as u64);
    reader.take(room).read_to_end(module)?;
    Ok(())
}

/// All frames one after the other; the library reads one at a time and leaves the checksum to its caller.
fn drain_zstd(mut bytes: &[u8], module: &mut Vec<u8>, limit: u64) -> io::Result<()> {
    while !bytes.is_empty() && module.len() as u64 <= limit {
        let mut frame = StreamingDecoder::new(&mut bytes).map_err(io::Error::other)?;
        drain(&mut frame, module, limit)?;
        let (stored, computed) =
            (frame.decoder.get_checksum_from_data(), frame.decoder.get_calculated_checksum());
        let whole = module.len() as u64 <= limit;
        if whole && stored.is_some() && stored != computed {
            return Err(io::Error::other("the checksum differs"));
        }
    }
    Ok(())
}

fn odd(path: &Path, what: &str) -> Error {
    Error::new(ErrorKind::Malformed, format!("{} {what}", path.display()))
        .with_hint("install the package again that the module comes in")
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use lzma_rust2::{XzOptions, XzWriter};
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    /// `printf 'a kernel module' | xz --check=crc32 --lzma2=dict=1MiB`, as `scripts/Makefile.modinst` has it.
    const XZ: &[u8] = b"\xfd7zXZ\0\0\x01i\x22\xde6\x02\0!\x01\x10\0\0\0\xa8p\x8e\x86\x01\0\x0e\
        a kernel module\0\0(\x8b22\0\x01#\x0f\xdb\xdf\x90\x0e\x90B\x99\x0d\x01\0\0\0\0\x01YZ";

    /// `… | gzip -n -9`
    const GZIP: &[u8] =
        b"\x1f\x8b\x08\0\0\0\0\0\x02\x03KT\xc8N-\xcaK\xcdQ\xc8\xcdO)\xcdI\x05\0(\x8b22\x0f\0\0\0";

    /// `… | zstd -T0`
    const ZSTD: &[u8] = b"(\xb5/\xfd\x04Xy\0\0a kernel module\xe3V9\x14";

    type Compress = fn(&[u8]) -> Vec<u8>;

    const FORMATS: [(&str, Compress); 3] = [("xz", xz), ("gzip", gzip), ("zstd", zstd)];

    fn xz(bytes: &[u8]) -> Vec<u8> {
        let mut writer = XzWriter::new(Vec::new(), XzOptions::with_preset(0)).unwrap();
        writer.write_all(bytes).unwrap();
        writer.finish().unwrap()
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        writer.write_all(bytes).unwrap();
        writer.finish().unwrap()
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        compress_to_vec(bytes, CompressionLevel::Fastest)
    }

    fn unpacked(bytes: &[u8], limit: u64) -> Result<Vec<u8>> {
        decompress(Path::new("/m/x.ko.z"), bytes.to_vec(), limit)
    }

    /// Text that compresses, but not to nothing.
    fn text() -> Vec<u8> {
        (0..300_u32).flat_map(|n| format!("{} ", n.wrapping_mul(2_654_435_761)).into_bytes()).collect()
    }

    #[test]
    fn each_format_gives_back_what_was_packed_also_in_two_parts() {
        for (format, compress) in FORMATS {
            let packed = compress(&text());
            assert!(packed.len() < text().len(), "{format}");
            assert!(unpacked(&packed, 1 << 20).unwrap() == text(), "{format}");
            let twice = [packed.clone(), packed].concat();
            assert!(unpacked(&twice, 1 << 20).unwrap() == [text(), text()].concat(), "{format}");
        }
        assert_eq!(unpacked(b"\x7fELF and so on", 4).unwrap(), b"\x7fELF and so on");
    }

    #[test]
    fn what_the_kernels_build_packs_is_read() {
        for packed in [XZ, GZIP, ZSTD] {
            assert_eq!(unpacked(packed, 100).unwrap(), b"a kernel module");
        }
    }

    #[test]
    fn a_file_cut_short_anywhere_is_an_error_that_names_it() {
        for (format, compress) in FORMATS {
            let packed = compress(&text());
            for length in (0..packed.len()).step_by(7).chain(packed.len() - 40..packed.len()) {
                let error = unpacked(&packed[..length], 1 << 20).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Malformed);
                assert!(error.to_string().starts_with("/m/x.ko.z is "), "{format} {length}: {error}");
            }
        }
    }

    #[test]
    fn flipped_bits_are_noticed_or_harmless() {
        for (format, compress) in FORMATS {
            let packed = compress(&text());
            for bit in (0..packed.len() * 8).step_by(41).chain(0..200) {
                let mut flipped = packed.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                if let Ok(module) = unpacked(&flipped, 1 << 20) {
                    assert!(module == text(), "{format}: bit {bit} changed the module");
                }
            }
        }
    }

    #[test]
    fn a_bomb_goes_off_at_the_limit() {
        let zeros = vec![0; 1 << 20];
        for (format, compress) in FORMATS {
            let packed = compress(&zeros);
            assert!(packed.len() < 20_000, "{format}");
            assert_eq!(unpacked(&packed, zeros.len() as u64).unwrap().len(), zeros.len(), "{format}");
            let error = unpacked(&packed, zeros.len() as u64 - 1).unwrap_err();
            assert!(error.to_string().contains("unpacks to more than 1048575 bytes"), "{format}: {error}");
            let many = packed.repeat(20);
            assert!(unpacked(&many, 3000).unwrap_err().to_string().contains("more than 3000"), "{format}");
        }
    }

    #[test]
    fn a_dictionary_of_gigabytes_is_refused_before_it_is_allocated() {
        let mut packed = XZ.to_vec();
        // The block's header is 12 bytes at 12, its last 4 their CRC; the byte at 16 is the dictionary's size.
        packed[16] = 40;
        let mut crc = flate2::Crc::new();
        crc.update(&packed[12..20]);
        packed[20..24].copy_from_slice(&crc.sum().to_le_bytes());
        let error = unpacked(&packed, 100).unwrap_err();
        assert!(format!("{error:#}").contains("memory"), "{error:#}");
    }

    #[test]
    fn other_files_are_named_as_such() {
        assert_eq!(unpacked(b"", 100).unwrap_err().to_string(), "/m/x.ko.z is empty");
        for bytes in [&b"\x7fEL"[..], b"#!/bin/sh", b"\xfd7zX", b"BZh9", b"\x28\xb5\x2f"] {
            let error = unpacked(bytes, 100).unwrap_err();
            assert!(error.to_string().contains("neither ELF nor compressed"), "{error}");
        }
    }
}
