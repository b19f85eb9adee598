package cfi

import (
	"testing"

	"pg_stat_backtrace/unwind/arch"
)

// fixedMemory answers every read, as a stack in a snapshot would.
type fixedMemory uint64

func (m fixedMemory) Word(uint64) (uint64, bool)      { return uint64(m), true }
func (m fixedMemory) Read(uint64, int) (uint64, bool) { return uint64(m), true }

// benchTable loads the largest file at hand, and an address in each of its functions, in no order.
func benchTable(b *testing.B) (*Table, []uint64) {
	b.Helper()
	path := firstFile("/usr/lib/postgresql/15/bin/postgres", "/lib/x86_64-linux-gnu/libc.so.6")
	if path == "" {
		b.Skip("neither a PostgreSQL server nor a C library where they are looked for")
	}
	t := load(b, path)
	var pcs []uint64
	for f := range t.FDEs {
		pcs = append(pcs, f.Start+(f.End-f.Start)*3/4)
	}
	for i := range pcs { // a fixed permutation
		j := (uint64(i) * 0x9e37_79b9_7f4a_7c15) % uint64(len(pcs))
		pcs[i], pcs[j] = pcs[j], pcs[i]
	}
	return t, pcs
}

func BenchmarkFind(b *testing.B) {
	t, pcs := benchTable(b)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, err := t.Find(pcs[i%len(pcs)]); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRowCold computes a new row each time.
func BenchmarkRowCold(b *testing.B) {
	t, pcs := benchTable(b)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, err := t.makeRow(pcs[i%len(pcs)]); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRowWarm looks up the 30 addresses of a stack repeatedly.
func BenchmarkRowWarm(b *testing.B) {
	t, pcs := benchTable(b)
	pcs = pcs[:30]
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, err := t.Row(pcs[i%len(pcs)]); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRowWarmParallel(b *testing.B) {
	t, pcs := benchTable(b)
	pcs = pcs[:30]
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			if _, err := t.Row(pcs[i%len(pcs)]); err != nil {
				b.Error(err)
			}
		}
	})
}

func BenchmarkApply(b *testing.B) {
	t, pcs := benchTable(b)
	var rows []Row
	for _, pc := range pcs[:30] {
		row, err := t.Row(pc)
		if err != nil {
			b.Fatal(err)
		}
		rows = append(rows, row)
	}
	regs := fullRegisters(arch.AMD64)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, _, err := rows[i%len(rows)].Apply(&regs, fixedMemory(0x1000)); err != nil {
			b.Fatal(err)
		}
	}
}

// fullRegisters returns registers with a value for every register of an architecture.
func fullRegisters(a *arch.Arch) arch.Registers {
	var regs arch.Registers
	for i := range a.NumRegisters {
		regs.Set(i, 0x7000_0000_0000+0x100*uint64(i))
	}
	return regs
}

// BenchmarkIndex builds the index of .eh_frame, as without .eh_frame_hdr.
func BenchmarkIndex(b *testing.B) {
	t, _ := benchTable(b)
	b.ReportAllocs()
	for b.Loop() {
		var ix index
		t.buildIndex(ehFrame, &ix)
	}
}
