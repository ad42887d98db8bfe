//! From an object file to loaded programs: parsed and relocated by `aya-obj`, loaded here, since aya itself
//! has no way to say `BPF_TRACE_KPROBE_MULTI`.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use aya_obj::{
    EbpfSectionKind, Map, Object,
    btf::Btf,
    generated::{BPF_CALL, BPF_JMP, BPF_PSEUDO_KFUNC_CALL, bpf_insn},
};

use crate::{
    error::{Error, ErrorKind, Result},
    sys::{Kernel, MapShape, ProgramImage, ProgramInfo},
};

/// Room for what the verifier says about a program that it refuses.
const VERIFIER_LOG_BYTES: usize = 1 << 20;

/// A program to load.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// Its name in the object.
    pub name: &'a str,
    /// The attach type that its link will have; 0 for one that runs at a perf event.
    pub attach_type: u32,
}

/// What the loader fills in before programs are loaded.
#[derive(Debug, Clone, Copy, Default)]
pub struct Settings<'a> {
    /// The number of entries of maps whose size is known only now.
    pub max_entries: &'a [(&'a str, u32)],
    /// Values of global variables. The verifier treats those of `.rodata` as constants.
    pub globals: &'a [(&'a str, &'a [u8])],
    /// Functions of the kernel that the programs call: the number that stands for one in the object, as if it were a
    /// helper, and that of its type in the kernel's BTF.
    pub kernel_functions: &'a [(i32, u32)],
}

/// Programs in the kernel, and their maps. Dropped, all are gone unless a link holds them.
#[derive(Debug)]
pub struct Programs {
    fds: Vec<OwnedFd>,
    maps: HashMap<String, OwnedFd>,
}

impl Programs {
    /// Loads the `wanted` programs out of `object`, an ELF file, in this order.
    ///
    /// Minimum kernel: 5.18 for the attach type of kprobe-multi.
    ///
    /// # Errors
    ///
    /// `Usage` for an object that can't be parsed or relocated or has no such program, `Permission` where the
    /// kernel asks for a capability, `Kernel` with the verifier's last words where it refuses.
    pub fn load(
        kernel: &dyn Kernel,
        object: &[u8],
        wanted: &[Wanted<'_>],
        settings: &Settings<'_>,
    ) -> Result<Self> {
        let mut object = Object::parse(object).map_err(|e| bad_object("can't parse the eBPF object", e))?;
        let globals = settings.globals.iter().map(|&(name, value)| (name, (value, false))).collect();
        object.patch_map_data(globals).map_err(|e| bad_object("can't set a global of the eBPF object", e))?;
        if object.has_btf_relocations() {
            let btf = Btf::from_sys_fs().map_err(|e| bad_object("can't read the kernel's BTF", e))?;
            object.relocate_btf(&btf).map_err(|e| bad_object("can't relocate to this kernel's types", e))?;
        }
        let maps = create_maps(kernel, &mut object, settings)?;
        relocate(&mut object, &maps)?;
        for function in object.functions.values_mut() {
            name_kernel_functions(&mut function.instructions, settings.kernel_functions);
        }
        let fds = wanted.iter().map(|program| load(kernel, &object, *program)).collect::<Result<_>>()?;
        Ok(Self { fds, maps: maps.into_iter().map(|(name, (fd, _))| (name, fd)).collect() })
    }

    /// The programs, in the order in which they were wanted.
    pub fn fds(&self) -> impl ExactSizeIterator<Item = BorrowedFd<'_>> {
        self.fds.iter().map(AsFd::as_fd)
    }

    /// The map called `name`, as the object spells it.
    pub fn map(&self, name: &str) -> Option<BorrowedFd<'_>> {
        self.maps.get(name).map(AsFd::as_fd)
    }

    /// What the kernel tells of each program.
    ///
    /// # Errors
    ///
    /// `Kernel` with the errno of `BPF_OBJ_GET_INFO_BY_FD`.
    pub fn info(&self, kernel: &dyn Kernel) -> Result<Vec<ProgramInfo>> {
        let info = |program| kernel.program_info(program);
        let all = self.fds().map(info).collect::<io::Result<_>>();
        all.map_err(|e| refused("can't ask the kernel about the program", e))
    }
}

/// The maps of an object by name, with their definitions for the relocation.
type Maps = HashMap<String, (OwnedFd, Map)>;

fn create_maps(kernel: &dyn Kernel, object: &mut Object, settings: &Settings<'_>) -> Result<Maps> {
    let mut maps = Maps::new();
    for (name, mut map) in object.maps.drain() {
        if let Some(&(_, entries)) = settings.max_entries.iter().find(|(wanted, _)| *wanted == name) {
            map.set_max_entries(entries);
        }
        let fd = create_map(kernel, &name, &map)
            .map_err(|e| refused(&format!("the kernel did not create the map {name}"), e))?;
        maps.insert(name, (fd, map));
    }
    Ok(maps)
}

/// Creates a map; one that stands for a section of the object gets its contents, and is frozen if constant.
fn create_map(kernel: &dyn Kernel, name: &str, map: &Map) -> io::Result<OwnedFd> {
    let fd = kernel.create_map(MapShape {
        name,
        map_type: map.map_type(),
        key_bytes: map.key_size(),
        value_bytes: map.value_size(),
        max_entries: map.max_entries(),
        flags: map.map_flags(),
    })?;
    if !map.data().is_empty() {
        kernel.update_map(fd.as_fd(), 0, map.data())?;
    }
    if map.section_kind() == EbpfSectionKind::Rodata {
        kernel.freeze_map(fd.as_fd())?;
    }
    Ok(fd)
}

fn relocate(object: &mut Object, maps: &Maps) -> Result<()> {
    let text_sections = object.functions.keys().map(|&(section, _)| section).collect();
    let fds = maps.iter().map(|(name, (fd, map))| (name.as_str(), fd.as_raw_fd(), map));
    object
        .relocate_maps(fds, &text_sections)
        .and_then(|()| object.relocate_calls(&text_sections))
        .map_err(|e| bad_object("can't relocate the eBPF object", e))
}

/// Turns calls of helpers that stand for functions of the kernel into calls of these
/// (`Documentation/bpf/kfuncs.rst`): neither Rust nor bpf-linker has a word for them.
fn name_kernel_functions(instructions: &mut [bpf_insn], functions: &[(i32, u32)]) {
    const CALL: u8 = (BPF_JMP | BPF_CALL) as u8;
    for call in instructions.iter_mut().filter(|insn| insn.code == CALL && insn.src_reg() == 0) {
        if let Some((_, id)) = functions.iter().find(|(stand_in, _)| *stand_in == call.imm) {
            call.set_src_reg(BPF_PSEUDO_KFUNC_CALL as u8);
            call.imm = *id as i32;
        }
    }
}

fn load(kernel: &dyn Kernel, object: &Object, wanted: Wanted<'_>) -> Result<OwnedFd> {
    let Wanted { name, attach_type } = wanted;
    let function = object
        .programs
        .get(name)
        .and_then(|program| object.functions.get(&program.function_key()))
        .ok_or_else(|| {
            Error::new(ErrorKind::Usage, format!("the eBPF object has no program called {name}"))
        })?;
    let image = ProgramImage {
        name,
        license: &object.license,
        instructions: &function.instructions,
        expected_attach_type: attach_type,
    };
    // The verifier's log costs time and memory, so it is only asked for once there is something to explain.
    kernel.load_program(&image, &mut []).or_else(|first| {
        let mut log = vec![0; VERIFIER_LOG_BYTES];
        kernel.load_program(&image, &mut log).map_err(|_| {
            let error = refused(&format!("the kernel did not load the program {name}"), first);
            match last_words(&log) {
                words if words.is_empty() => error,
                words => error.with_hint(format!("the verifier's last words: {words}")),
            }
        })
    })
}

/// The last lines of a verifier log, on one line.
fn last_words(log: &[u8]) -> String {
    let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
    let text = String::from_utf8_lossy(&log[..end]);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(4)..].join(" / ")
}

fn bad_object(message: &str, cause: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::Usage, message).with_source(cause)
}

/// What an errno of `BPF_MAP_CREATE` or `BPF_PROG_LOAD` means (`kernel/bpf/syscall.c`, 6.1 to 7.3).
fn refused(message: &str, cause: io::Error) -> Error {
    let (kind, hint) = match cause.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => (
            ErrorKind::Permission,
            "it takes CAP_BPF and CAP_PERFMON, or CAP_SYS_ADMIN: run it as root (sudo fastprobe …)",
        ),
        Some(libc::ENOSYS) => (ErrorKind::Unsupported, "this kernel was built without CONFIG_BPF_SYSCALL"),
        Some(libc::EINVAL) => {
            (ErrorKind::Kernel, "kprobe-multi programs need Linux 5.18 or later: see uname -r")
        }
        Some(libc::ENOMEM | libc::E2BIG) => {
            (ErrorKind::Kernel, "out of kernel memory for the maps: match fewer functions")
        }
        _ => (ErrorKind::Kernel, ""),
    };
    let error = Error::new(kind, message).with_source(cause);
    if hint.is_empty() { error } else { error.with_hint(hint) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        instrument::count::OBJECT,
        sys::{Fake, Moment},
    };

    fn load_with(fake: &Fake, name: &str) -> Result<Programs> {
        let layout = [1; 16];
        let settings = Settings {
            max_entries: &[(probe_ebpf::SITES_MAP, 80)],
            globals: &[(probe_ebpf::LAYOUT_SYMBOL, &layout)],
            kernel_functions: &[],
        };
        let wanted = Wanted { name, attach_type: Moment::Entry.attach_type() };
        Programs::load(fake, OBJECT, &[wanted], &settings)
    }

    #[test]
    fn stand_ins_become_calls_of_the_kernels_functions() {
        let call = |source, imm| {
            let mut call = bpf_insn {
                code: (BPF_JMP | BPF_CALL) as u8,
                _bitfield_align_1: [],
                _bitfield_1: bpf_insn::new_bitfield_1(0, source),
                off: 0,
                imm,
            };
            name_kernel_functions(std::slice::from_mut(&mut call), &[(0x7fff_0001, 4711)]);
            (call.src_reg(), call.imm)
        };
        assert_eq!(call(0, 0x7fff_0001), (BPF_PSEUDO_KFUNC_CALL as u8, 4711));
        // A helper, and a function of the program.
        assert_eq!(call(0, 173), (0, 173));
        assert_eq!(call(1, 0x7fff_0001), (1, 0x7fff_0001));
    }

    #[test]
    fn the_object_loads_with_the_sizes_that_were_set_and_constants_frozen() {
        let fake = Fake::default();
        let program = load_with(&fake, probe_ebpf::COUNT_PROGRAM).unwrap();
        assert!(program.map(probe_ebpf::HITS_MAP).is_some());
        assert!(program.map("nonesuch").is_none());
        assert!(fake.maps.borrow().contains(&(probe_ebpf::SITES_MAP.to_owned(), 80)));
        assert_eq!(fake.frozen.get(), 1);
    }

    #[test]
    fn a_missing_capability_is_a_permission_error_that_names_it() {
        for fake in [
            Fake { map_errno: Some(libc::EPERM), ..Fake::default() },
            Fake { load_errno: Some((libc::EPERM, "")), ..Fake::default() },
        ] {
            let error = load_with(&fake, probe_ebpf::COUNT_PROGRAM).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Permission);
            assert!(error.hint().unwrap().contains("CAP_BPF"), "{error:#}");
        }
    }

    #[test]
    fn the_verifier_has_the_last_word() {
        let words = "0: R1=ctx\n\n1: (85) call 173\nprogram of this type cannot use helper\n";
        let fake = Fake { load_errno: Some((libc::EINVAL, words)), ..Fake::default() };
        let error = load_with(&fake, probe_ebpf::COUNT_PROGRAM).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Kernel);
        assert!(error.hint().unwrap().ends_with("call 173 / program of this type cannot use helper"));
    }

    #[test]
    fn what_is_not_there_or_not_an_object_is_an_error() {
        assert!(load_with(&Fake::default(), "nonesuch").unwrap_err().to_string().contains("nonesuch"));
        let error = Programs::load(&Fake::default(), b"\x7fELF", &[], &Settings::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
    }
}
