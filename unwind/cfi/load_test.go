package cfi

import (
	"debug/elf"
	"errors"
	"os"
	"testing"

	"pg_stat_backtrace/unwind/arch"
)

// load makes the Table of an ELF file.
func load(tb testing.TB, path string) *Table {
	tb.Helper()
	f, err := elf.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = f.Close() }() // read only
	s := Sections{
		EHFrameHdr: sectionOf(tb, f, ".eh_frame_hdr"),
		EHFrame:    sectionOf(tb, f, ".eh_frame"),
		DebugFrame: sectionOf(tb, f, ".debug_frame"),
		Order:      f.ByteOrder,
		TextAddr:   sectionOf(tb, f, ".text").Addr,
		DataAddr:   sectionOf(tb, f, ".got").Addr,
	}
	s.Arch, err = arch.ByMachine(f.Machine, f.ByteOrder)
	if err != nil {
		tb.Fatal(err)
	}
	t, err := New(s)
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

func sectionOf(tb testing.TB, f *elf.File, name string) Section {
	tb.Helper()
	s := f.Section(name)
	if s == nil || s.Type == elf.SHT_NOBITS {
		return Section{}
	}
	data, err := s.Data()
	if err != nil {
		tb.Fatal(name, err)
	}
	return Section{Addr: s.Addr, Data: data}
}

// needFile skips a test, with the reason, where a file is not installed.
func needFile(tb testing.TB, path string) {
	tb.Helper()
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		tb.Skipf("%s is not on this machine", path)
	}
}

// firstFile returns the first path that exists, or "".
func firstFile(paths ...string) string {
	for _, p := range paths {
		if _, err := os.Stat(p); err == nil {
			return p
		}
	}
	return ""
}
