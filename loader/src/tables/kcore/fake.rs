//! A small kernel's memory, for tests: seven symbols, a module, two groups of ftrace records, a blacklist.

use std::{
    collections::HashSet,
    sync::atomic::{AtomicUsize, Ordering},
};

use super::{
    Clock, CompressedSymbols, KcoreTables, Lists, Rest,
    layout::{BlacklistLayout, FtraceLayout, ModKallsymsLayout, ModuleLayout, Structures},
    memory::Memory,
    read_all, read_rest,
    vmcoreinfo::VmCoreInfo,
};
use crate::{
    error::Result,
    tables::{odd, tokens::tests::table},
};

/// Memory made of a few stretches.
#[derive(Debug, Default)]
pub struct FakeMemory {
    segments: Vec<(u64, Vec<u8>)>,
    reads: AtomicUsize,
}

impl FakeMemory {
    /// Writes, over what is there or as a new stretch.
    pub fn put(&mut self, address: u64, bytes: &[u8]) {
        for (start, memory) in &mut self.segments {
            if let Some(at) = address.checked_sub(*start).map(|at| at as usize)
                && at + bytes.len() <= memory.len()
            {
                memory[at..at + bytes.len()].copy_from_slice(bytes);
                return;
            }
        }
        self.segments.push((address, bytes.to_vec()));
    }

    /// Every byte that there is.
    pub fn places(&self) -> impl Iterator<Item = (usize, usize)> + use<'_> {
        let lengths = self.segments.iter().map(|(_, bytes)| bytes.len()).enumerate();
        // Pages are mostly nothing.
        lengths.flat_map(|(segment, length)| (0..length.min(1500)).map(move |at| (segment, at)))
    }

    /// Damages one of them.
    pub fn flip(&mut self, segment: usize, at: usize, bits: u8) {
        self.segments[segment].1[at] ^= bits;
    }
}

impl Memory for FakeMemory {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let found = self.segments.iter().find_map(|(start, bytes)| {
            let at = usize::try_from(address.checked_sub(*start)?).ok()?;
            bytes.get(at..at.checked_add(buffer.len())?)
        });
        buffer.copy_from_slice(found.ok_or_else(|| odd(format!("nothing at {address:#x}")))?);
        Ok(())
    }

    fn reads(&self) -> usize {
        self.reads.load(Ordering::Relaxed)
    }
}

/// Memory and what describes it.
#[allow(missing_docs, reason = "for tests")]
pub struct FakeKernel {
    pub memory: FakeMemory,
    pub info: VmCoreInfo,
    pub structures: Structures,
}

/// Type, address, name and module.
pub type Symbol = (u8, u64, Vec<u8>, Option<Vec<u8>>);

/// Where `kallsyms_names` and the tables behind it are.
const KALLSYMS: u64 = 0xffff_ffff_8200_0000;
const MODULE_STRUCT: u64 = 0xffff_ffff_c000_0000;
const MODULE_SYMBOLS: u64 = 0xffff_ffff_c001_0000;
const GROUPS: [u64; 2] = [0xffff_8880_0000_0000, 0xffff_8880_0000_1000];
const RECORDS: [u64; 2] = [0xffff_8880_0001_0000, 0xffff_8880_0002_0000];
const BLACKLIST: u64 = 0xffff_8880_0003_0ff0;
const SYMTAB_NAMES: &[u8] = b"\0kvm_init\0kvm_exit\0kvm_data\0";

type Core = [(u8, u64, &'static str); 6];

impl FakeKernel {
    /// Where the core kernel's code starts.
    pub const CORE: u64 = 0xffff_ffff_8100_0000;
    /// Where the module's code starts.
    pub const MODULE: u64 = 0xffff_ffff_c010_0000;

    const SYMBOLS: Core = [
        (b'T', Self::CORE, "_stext"),
        (b'T', Self::CORE + 0x200, "vfs_read"),
        (b't', Self::CORE + 0x300, "kvm_core"),
        (b'D', Self::CORE + 0x10_0000, "modules"),
        (b'd', Self::CORE + 0x10_0020, "kprobe_blacklist"),
        (b'b', Self::CORE + 0x10_0040, "ftrace_pages_start"),
    ];

    /// As in 7.0 and later.
    pub fn self_relative() -> Self {
        Self::new(None, |index, address| (address as i64 - (offsets_at() + 4 * index as u64) as i64) as u32)
    }

    /// As in kernels with a base and without absolute per-CPU addresses.
    pub fn relative() -> Self {
        Self::new(Some(Self::CORE), |_, address| (address - Self::CORE) as u32)
    }

    /// As in 6.1 and 6.12.
    pub fn percpu() -> Self {
        Self::new(Some(Self::CORE), |_, address| (Self::CORE as i64 - 1 - address as i64) as u32)
    }

    fn new(base: Option<u64>, offset: impl Fn(usize, u64) -> u32) -> Self {
        let mut memory = FakeMemory::default();
        let tables = kallsyms(&offset);
        memory.put(KALLSYMS - 8, &(Self::SYMBOLS.len() as u64).to_ne_bytes());
        memory.put(KALLSYMS, &tables);
        let mut info = format!(
            "SYMBOL(kallsyms_num_syms)={:x}\nSYMBOL(kallsyms_names)={KALLSYMS:x}\n\
             SYMBOL(kallsyms_token_table)={:x}\nSYMBOL(kallsyms_token_index)={:x}\n\
             SYMBOL(kallsyms_offsets)={:x}\nSYMBOL(_stext)={:x}\n",
            KALLSYMS - 8,
            KALLSYMS + 0x100,
            KALLSYMS + 0x600,
            offsets_at(),
            Self::CORE
        );
        if let Some(base) = base {
            memory.put(KALLSYMS + 0x2000, &base.to_ne_bytes());
            info.push_str(&format!("SYMBOL(kallsyms_relative_base)={:x}\n", KALLSYMS + 0x2000));
        }
        put_module(&mut memory);
        put_records(&mut memory);
        put_blacklist(&mut memory);
        Self { memory, info: VmCoreInfo::parse(info.as_bytes()), structures: structures() }
    }

    /// One function's name expands to more than any name has.
    pub fn with_an_endless_name() -> Self {
        let mut kernel = Self::relative();
        let tables = kallsyms(&|_, _| 0);
        let codes = b"\x02fs_read";
        let name = tables.windows(codes.len()).position(|window| window == codes).unwrap();
        kernel.memory.put(KALLSYMS + name as u64, &[3; 8]);
        kernel
    }

    /// Reads its tables.
    pub fn read(&self) -> Result<KcoreTables> {
        read_all(&self.memory, &self.info, false, &mut || Ok(self.structures.clone()), Clock::start())
    }

    /// Reads the core's symbols, and their order.
    pub fn core_with_order(&self) -> Result<CompressedSymbols> {
        CompressedSymbols::read(&self.memory, &self.info, true)
    }

    /// Reads what can have changed.
    pub fn read_changed(&self, lists: &Lists, known: &HashSet<&[u8]>) -> Result<Rest> {
        let mut clock = Clock::start();
        clock.step("before", self.memory.reads());
        read_rest(&self.memory, lists, known, &mut || Ok(self.structures.clone()), clock)
    }

    /// Its tables, which are in order.
    pub fn tables(&self) -> KcoreTables {
        self.read().unwrap()
    }

    /// The same with a symbol elsewhere.
    pub fn info_with(&self, symbol: &str, address: u64) -> VmCoreInfo {
        let mut lines = String::new();
        for name in ["num_syms", "names", "token_table", "token_index", "offsets"] {
            let name = format!("kallsyms_{name}");
            lines += &format!("SYMBOL({name})={:x}\n", self.info.symbol(&name).unwrap());
        }
        lines += &format!("SYMBOL(_stext)={:x}\nSYMBOL({symbol})={address:x}\n", Self::CORE);
        VmCoreInfo::parse(lines.as_bytes())
    }

    /// Type, address, name and module of all symbols.
    pub fn symbols(&self) -> Vec<Symbol> {
        let core = Self::SYMBOLS.map(|(kind, address, name)| (kind, address, name.as_bytes().to_vec(), None));
        let module = [(b't', 0x100, "kvm_init"), (b'T', 0x200, "kvm_exit"), (b'd', 0x900, "kvm_data")].map(
            |(kind, at, name)| (kind, Self::MODULE + at, name.as_bytes().to_vec(), Some(b"kvm".to_vec())),
        );
        [&core[..], &module].concat()
    }

    /// The usable records.
    pub fn sites(&self) -> [u64; 3] {
        [Self::CORE + 0x204, Self::CORE + 0x304, Self::MODULE + 0x104]
    }

    /// The forbidden stretches.
    pub fn blacklist(&self) -> [(u64, u64); 2] {
        [(Self::CORE + 0x10, Self::CORE + 0x20), (Self::CORE + 0x300, Self::CORE + 0x340)]
    }
}

fn offsets_at() -> u64 {
    KALLSYMS + 0x800
}

fn kallsyms(offset: &impl Fn(usize, u64) -> u32) -> Vec<u8> {
    let (tokens, index) = table(&[(1, "kvm_"), (2, "Tv"), (3, &"t".repeat(100))]);
    let mut names = Vec::new();
    for (kind, _, name) in FakeKernel::SYMBOLS {
        let plain = format!("{}{name}", kind as char);
        let codes = plain.replace("kvm_", "\u{1}").replace("Tv", "\u{2}").into_bytes();
        names.push(codes.len() as u8);
        names.extend(codes);
    }
    let offsets = FakeKernel::SYMBOLS.iter().enumerate().flat_map(|(i, s)| offset(i, s.1).to_ne_bytes());
    let mut by_name: Vec<usize> = (0..FakeKernel::SYMBOLS.len()).collect();
    by_name.sort_by_key(|&number| FakeKernel::SYMBOLS[number].2);
    let order = by_name.iter().flat_map(|&number| [0, 0, number as u8]);
    let mut tables = names;
    for (at, bytes) in [(0x100, tokens), (0x600, index), (0x800, offsets.chain(order).collect())] {
        assert!(tables.len() <= at);
        tables.resize(at, 0);
        tables.extend(bytes);
    }
    tables
}

fn put_module(memory: &mut FakeMemory) {
    let list_head = FakeKernel::SYMBOLS[3].1;
    let mut module = vec![0; 256];
    module[8..16].copy_from_slice(&list_head.to_ne_bytes());
    module[24..27].copy_from_slice(b"kvm");
    module[96..104].copy_from_slice(&(MODULE_STRUCT + 128).to_ne_bytes());
    let names_at = MODULE_SYMBOLS + 4 * 24;
    let types_at = names_at + SYMTAB_NAMES.len() as u64;
    for (at, word) in [(128, MODULE_SYMBOLS), (136, 4), (144, names_at), (152, types_at)] {
        module[at..at + 8].copy_from_slice(&word.to_ne_bytes());
    }
    memory.put(MODULE_STRUCT, &module);
    let mut symbols = vec![0; 24];
    for (name, value) in [(1_u32, 0x100_u64), (10, 0x200), (19, 0x900)] {
        symbols.extend(name.to_ne_bytes());
        symbols.extend([0; 4]);
        symbols.extend((FakeKernel::MODULE + value).to_ne_bytes());
        symbols.extend([0; 8]);
    }
    memory.put(MODULE_SYMBOLS, &[&symbols, SYMTAB_NAMES, b"?tTd"].concat());
    memory.put(list_head, &[MODULE_STRUCT + 8; 2].map(u64::to_ne_bytes).concat());
}

fn put_records(memory: &mut FakeMemory) {
    const DISABLED: u64 = 1 << 25;
    let (core, module) = (FakeKernel::CORE, FakeKernel::MODULE);
    let groups =
        [vec![(core + 0x204, 0), (core + 0x280, DISABLED), (core + 0x304, 0)], vec![(module + 0x104, 0)]];
    for (number, records) in groups.into_iter().enumerate() {
        let records: Vec<u8> =
            records.into_iter().flat_map(|(ip, flags)| [ip, flags]).flat_map(u64::to_ne_bytes).collect();
        let next = GROUPS.get(number + 1).copied().unwrap_or(0);
        let group = [next, RECORDS[number], (records.len() / 16) as u64].map(u64::to_ne_bytes).concat();
        memory.put(GROUPS[number], &group);
        memory.put(RECORDS[number], &records);
    }
    memory.put(FakeKernel::SYMBOLS[5].1, &GROUPS[0].to_ne_bytes());
}

/// Two entries, each in a page of its own.
fn put_blacklist(memory: &mut FakeMemory) {
    let head = FakeKernel::SYMBOLS[4].1;
    let (first, second) = (BLACKLIST & !0xfff, (BLACKLIST & !0xfff) + 0x1020);
    let mut pages = vec![0; 0x2000];
    let core = FakeKernel::CORE;
    for (at, words) in
        [(0, [second, head, core + 0x300, core + 0x340]), (0x1020, [head, first, core + 0x10, core + 0x20])]
    {
        pages[at..at + 32].copy_from_slice(&words.map(u64::to_ne_bytes).concat());
    }
    memory.put(first, &pages);
    memory.put(head, &first.to_ne_bytes());
}

fn structures() -> Structures {
    Structures {
        module: ModuleLayout { size: 256, state: 0, list: 8, name: 24, kallsyms: 96 },
        mod_kallsyms: ModKallsymsLayout { size: 32, symtab: 0, num_symtab: 8, strtab: 16, typetab: 24 },
        ftrace: FtraceLayout {
            page_size: 24,
            next: 0,
            records: 8,
            index: 16,
            record_size: 16,
            ip: 0,
            flags: 8,
        },
        blacklist: BlacklistLayout { size: 32, list: 0, start_addr: 16, end_addr: 24 },
    }
}
